"""A whole recipe on a tiny model: what it leaves behind, and that an interruption changes nothing of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from playing import play
from safetensors.torch import load_file
from watching import Interruption, Watching

from deedrl.cli.main import main
from deedrl.config import dump_yaml
from deedrl.errors import ConfigError
from deedrl.evaluation.figures import share
from deedrl.evaluation.metrics import compute_metrics
from deedrl.pipeline import grpo_stage, online, sft_stage, validation
from deedrl.pipeline.checkpoint import CheckpointFolder, load_checkpoint
from deedrl.pipeline.recipe import load_recipe
from deedrl.pipeline.run import EVENTS, Run
from deedrl.pipeline.stages import export_policy
from deedrl.pipeline.validation import held_out_score
from deedrl.reports.data import report_data
from deedrl.reports.progress import make_progress
from deedrl.store.jsonl import TrajectoryStore
from deedrl.tracking.jsonl import read_metrics

ENVIRONMENT = Path(__file__).with_name("letters.py")
STAGES: list[dict[str, Any]] = [
    {"stage": "baseline", "also_unseen": True},
    {"stage": "cold_start", "tasks": 6, "samples_per_task": 2, "guided_share": 0.5, "demonstrations": 16},
    {"stage": "sft", "steps": 24, "batch_size": 8, "learning_rate": 1e-2},
    {
        "stage": "grpo",
        "steps": 4,
        "tasks_per_step": 2,
        "group_size": 3,
        "validate_every": 2,
        "validation_tasks": 2,
        "learning_rate": 1e-3,
    },
    {"stage": "mine", "tasks": 8, "attempts": 4, "steps": 1, "band": [0.0, 1.0]},
    {"stage": "evaluate", "also_unseen": True},
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory, tiny_models: Callable[..., Any]) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    texts = ["Call choose with the letter.", "Answer every turn with one JSON object and nothing else:"]
    texts += ['{"reasoning":"I choose.","tool_name":"choose","parameters":{"letter":"A"}}'] * 20
    data = {
        "name": "letters",
        "seed": 5,
        "model": {"path": str(tiny_models(texts).folder(initializer_range=0.3)), "dtype": "fp32"},
        "environment": f"{ENVIRONMENT}:Letters",
        "tasks": {"train": 16, "validation": 4, "test": 4, "test_unseen": 3},
        "sampling": {"max_tokens": 32},
        "limits": {"max_steps": 2},
        "checkpoints": {"every_steps": 1},
        "stages": STAGES,
    }
    path = folder / "recipe.yaml"
    path.write_text(dump_yaml(data))
    return path


def deedrl(*arguments: object) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert not end.value.code


@pytest.fixture(scope="module")
def finished(recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run; tests only read it."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    deedrl("run", recipe_file, "--out", folder, "--quiet")
    return folder


def summary_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "summary.json").read_text()))


def event(folder: Path, kind: str, stage: str) -> dict[str, Any]:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    [found] = [e for e in events if e["event"] == kind and e.get("stage") == stage]
    return dict(found["metrics"])


def assert_same_result(one: Path, other: Path, tolerance: float) -> None:
    """The same policy after each training stage, and the same figures."""
    for stage in ("sft", "grpo", "mine"):
        first, second = (CheckpointFolder(folder / "checkpoints" / stage).latest() for folder in (one, other))
        assert first is not None
        assert second is not None
        assert first.step == second.step
        for name, value in first.tensors.items():
            torch.testing.assert_close(second.tensors[name], value, rtol=0, atol=tolerance, msg=f"{stage}: {name}")
    adapters = [load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (one, other)]
    assert adapters[0].keys() == adapters[1].keys()
    for name, value in adapters[0].items():
        torch.testing.assert_close(adapters[1][name], value, rtol=0, atol=tolerance)
    assert summary_of(one)["after"]["completion_rate"] == summary_of(other)["after"]["completion_rate"]


# ---------------------------------------------------------------- what a run leaves behind


def test_the_summary_keeps_its_public_contract(finished: Path) -> None:
    summary = summary_of(finished)
    names = [stage["name"] for stage in summary["stages"]]
    assert names == ["baseline", "baseline_unseen", "cold_start", "sft", "grpo", "mine", "evaluate", "evaluate_unseen"]
    unseen = summary["stages"][-1]["metrics"]
    for metrics, episodes in ((summary["before"], 4), (summary["after"], 4), (unseen, 3)):
        for name in ("completion_rate", "mean_steps", "tool_call_accuracy", "format_compliance"):
            assert {"value", "numerator", "denominator", "low", "high"} <= set(metrics[name])
        assert (metrics["episodes"], metrics["unscored"], metrics["errored"]) == (episodes, 0, 0)
    assert summary["before"]["splits"] == summary["after"]["splits"]
    assert all(stage["seconds"] >= 0 for stage in summary["stages"])


def test_training_changes_what_the_model_does(finished: Path) -> None:
    summary = summary_of(finished)
    assert summary["before"]["format_compliance"]["value"] == 0
    assert summary["after"]["format_compliance"]["value"] > 0.5
    assert event(finished, "stage_finished", "grpo")["action_tokens"] > 0
    assert event(finished, "stage_finished", "mine")["hard_tasks"] > 0


def test_the_cold_start_says_where_its_data_came_from(finished: Path) -> None:
    found = event(finished, "stage_finished", "cold_start")
    assert set(found["sources"]) == {"policy", "guided", "demonstration"}
    # 10 tasks are left for demonstrations, so some of the 16 are of the same task; each is one trajectory.
    assert found["sources"]["demonstration"] == 16
    positives = list(TrajectoryStore(finished / "trajectories" / "cold-start-positives.jsonl"))
    assert len(positives) == sum(found["sources"].values())
    negatives = list(TrajectoryStore(finished / "trajectories" / "cold-start-negatives.jsonl"))
    assert negatives
    assert len(negatives) == found["negatives"] == sum(t.solved is False for t in negatives)


def test_evaluations_are_stored_under_their_stage_and_pair_up(finished: Path) -> None:
    before, after = (TrajectoryStore(finished / "trajectories" / f"{n}.jsonl") for n in ("baseline", "evaluate"))
    assert before.episode_ids() == after.episode_ids()
    assert {t.split for t in before} == {"test"}
    assert {t.split for t in TrajectoryStore(finished / "trajectories" / "evaluate_unseen.jsonl")} == {"test_unseen"}
    versions = [{step.completion.policy_version for t in store for step in t.steps} for store in (before, after)]
    assert versions[0] == {"base"}
    assert versions[1] != {"base"}


def test_the_report_finds_all_its_parts(finished: Path) -> None:
    data = report_data(finished)
    assert [row.title for row in data.headline] == [row.title for row in data.unseen]
    assert {source.name: source.count for source in data.sources}["demonstration"] == 16
    assert data.example is not None
    assert (data.example.before.provenance.stage, data.example.after.provenance.stage) == ("baseline", "evaluate")
    assert dict(next(row.figures for row in data.stages if row.name == "mine"))["hard tasks"] != "0"
    assert "demonstrated by the environment" in (finished / "report.html").read_text()


def test_finished_stages_are_skipped(finished: Path, recipe_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (finished / "events.jsonl").read_text().count("stage_started")
    deedrl("run", recipe_file, "--out", finished, "--plain")
    assert (finished / "events.jsonl").read_text().count("stage_started") == before
    assert capsys.readouterr().err.count("finished before, skipped") == len(STAGES)


# ---------------------------------------------------------------- export


def model_logits(model: Any, ids: tuple[int, ...] = (5, 60, 7, 99)) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(torch.tensor([ids])).logits


def test_the_adapter_loads_with_plain_peft_and_equals_the_merged_export(finished: Path, tmp_path: Path) -> None:
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    deedrl("export", finished, "--to", tmp_path / "adapter", "--adapter-only")
    deedrl("export", finished, "--to", tmp_path / "merged")
    adapted = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter", dtype=torch.float32)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    torch.testing.assert_close(model_logits(merged), model_logits(adapted), rtol=0, atol=1e-4)
    with adapted.disable_adapter():
        assert not torch.allclose(model_logits(adapted), model_logits(merged), atol=1e-2)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template


def test_a_run_without_training_has_nothing_to_export(recipe_file: Path, tmp_path: Path) -> None:
    with Run.open(tmp_path / "run", load_recipe(recipe_file, [])):
        pass
    with pytest.raises(ConfigError, match="run its training first"):
        export_policy(tmp_path / "run", tmp_path / "out", merge=True)


# ---------------------------------------------------------------- what is logged, and what is said


def test_C03_C14_C22_what_taught_nothing_and_what_was_clamped_is_logged_every_step(finished: Path) -> None:
    logged = read_metrics(finished)
    for name in ("groups", "zero_variance_groups", "unscored_episodes", "clip_fraction", "clamped_fraction"):
        assert set(logged[f"grpo/{name}"]) == {1, 2, 3, 4}, name
    assert all(logged["grpo/zero_variance_groups"][step] <= groups for step, groups in logged["grpo/groups"].items())


def test_B17_the_logprob_gap_is_logged_every_step_and_is_rounding(finished: Path) -> None:
    gaps = read_metrics(finished)["grpo/logprob_gap"]
    assert set(gaps) == {1, 2, 3, 4}
    assert max(gaps.values()) < 1e-4  # type: ignore[type-var, operator]


@pytest.fixture(scope="module")
def watched(recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float], Watching]:
    """Folder, last figures and warnings of a grpo stage whose validations go up and then down, all alarms raised."""
    scores = {0: 0.25, 2: 0.75, 4: 0.5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation, "validate", lambda s, stage, step, n: metrics_with(scores[step]))
        patch.setattr(online, "held_out_alarm", lambda seen: f"held-out, {len(seen['validation_completion'])}")
        patch.setattr(online, "stability_alarms", lambda seen, newest, tasks: [f"unstable, step {len(seen['reward'])}"])
        patch.setattr(grpo_stage, "logprob_gap_alarm", lambda updated, dtype: "gap")
        patch.setattr(grpo_stage, "signal_alarm", lambda figures, counts, limit: f"limit {limit}")
        folder, progress = tmp_path_factory.mktemp("runs") / "watched", Watching()
        play(folder, load_recipe(recipe_file, ["checkpoints.keep_last=9"]), progress, only=["grpo"])
    return folder, event(folder, "stage_finished", "grpo"), progress


def metrics_with(completion: float) -> Any:
    return msgspec.structs.replace(
        compute_metrics([]), completion_rate=share(index < 4 * completion for index in range(4))
    )


def test_F20_held_out_scores_order_by_completion_and_then_by_reward() -> None:
    def score(solved: int, reward: float) -> float | None:
        completion = share(index < solved for index in range(4))
        rewards = msgspec.structs.replace(compute_metrics([]).mean_reward, value=reward)
        return held_out_score(
            msgspec.structs.replace(compute_metrics([]), completion_rate=completion, mean_reward=rewards)
        )

    ordered = [score(0, 0.0), score(0, 0.4), score(1, 0.1), score(1, 0.3), score(3, 0.2), score(4, 1.0)]
    assert all(score is not None and 0 <= score <= 1 for score in ordered)
    assert ordered == sorted(ordered)  # type: ignore[type-var]
    assert len(set(ordered)) == len(ordered)
    assert held_out_score(compute_metrics([])) is None


def test_F20_the_best_validated_weights_become_the_policy_and_not_the_last(watched: Any) -> None:
    folder, figures, _ = watched
    assert (figures["best_step"], figures["best_validation_completion"]) == (2, 0.75)
    best, last = (load_checkpoint(folder / "checkpoints" / "grpo" / f"step-{step:08}").tensors for step in (2, 4))
    adapter = load_file(folder / "adapter" / "adapter_model.safetensors")
    names = {key: f"parameter.{key.removesuffix('.weight')}.default.weight" for key in adapter}
    assert all(torch.equal(adapter[key], best[name]) for key, name in names.items())
    assert not all(torch.equal(adapter[key], last[name]) for key, name in names.items())


def test_B17_C24_F20_alarms_are_said(watched: Any) -> None:
    folder, _, progress = watched
    expected = ["grpo: held-out, 1"]
    for step in (1, 2, 3, 4):
        expected += ["grpo: limit 32", "grpo: gap"]
        expected += [f"grpo: held-out, {1 + step // 2}"] if step in (2, 4) else []
        expected += [f"grpo: unstable, step {step}"]
    assert [text for text in progress.warnings if text.startswith("grpo: ")] == expected
    recorded = [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]
    warned = [f"{event['stage']}: {event['text']}" for event in recorded if event["event"] == "warning"]
    assert warned == expected, "and stay in the run's events"


def test_F10_an_evaluation_says_where_the_policy_stopped_looking(finished: Path, recipe_file: Path) -> None:
    """The one tool is no look-up, so any accepted call counts: the base model makes none, the trained one does."""
    use = {name: summary_of(finished)[name]["by_family"]["default"]["tool_use"] for name in ("before", "after")}
    assert use["before"]["numerator"] == 0 < use["after"]["numerator"]
    progress = Watching()
    folder = finished.with_name("looking")
    play(folder, load_recipe(recipe_file, []), progress, only=["baseline", "evaluate"])
    # Untrained, both are alike; only an evaluation speaks, for a baseline has fallen from nothing.
    said = [text for text in progress.warnings if "guessing" in text]
    assert said == [
        "evaluate: the policy may be guessing: family 'default': 0 of 4 episodes looked before acting",
    ]


# ---------------------------------------------------------------- secrets


def test_H14_no_output_of_a_run_holds_a_key(
    recipe_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A key in the prompt, in what a tool returns and in a crash; every file and all that was printed is searched."""
    canary = "hf_" + "C4n4ryC4n4ryC4n4ryC4n4ry"
    source = ENVIRONMENT.read_text()
    (tmp_path / "leaky.py").write_text(source.replace('return "done"', f'return "done with {canary}"'))
    crash = f'raise OSError("refused: Bearer {canary}")'
    (tmp_path / "broken.py").write_text(source.replace('self.chosen = ""', crash))
    for name, stage, code in (("leaky", "collect", 0), ("broken", "eval", 2)):
        command = [stage, recipe_file, f"environment={tmp_path}/{name}.py:Letters", f"prompt.system=Use {canary}."]
        command += ["stages.cold_start.tasks=1", "stages.evaluate.tasks=1", "failures.retries=0", "--plain"]
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in (*command, "--run", tmp_path / name)])
        assert (end.value.code or 0) == code
    files = [path for name in ("leaky", "broken") for path in (tmp_path / name).rglob("*") if path.is_file()]
    assert {"recipe.yaml", "events.jsonl", "cold_start-demonstrations.jsonl"} <= {path.name for path in files}
    assert [path for path in files if canary.encode() in path.read_bytes()] == []
    shown = capfd.readouterr()
    assert "refused" in shown.err
    assert canary not in shown.out + shown.err


# ---------------------------------------------------------------- interruptions


@pytest.mark.parametrize("at", [2, 4], ids=["between_two_passes", "after_the_last_step"])
def test_C15_a_resume_at_the_end_of_a_pass_trains_exactly_the_steps_that_are_left(
    recipe_file: Path, tmp_path: Path, at: int
) -> None:
    """8 positives in batches of 4 are 2 steps a pass; 2 passes are wanted."""
    overrides = ["stages.cold_start.tasks=0", "stages.cold_start.demonstrations=8", "stages.sft.batch_size=4"]
    recipe = load_recipe(recipe_file, [*overrides, "stages.sft.steps=null", "stages.sft.epochs=2"])
    stages = ["cold_start", "sft"]
    play(tmp_path / "straight", recipe, only=stages)
    with pytest.raises(Interruption):
        play(tmp_path / "resumed", recipe, Watching("sft", at=at), only=stages)
    play(tmp_path / "resumed", recipe, only=stages)
    lines = [json.loads(line) for line in (tmp_path / "resumed" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["stage"] == "sft"] == [1, 2, 3, 4]
    rates = [read_metrics(tmp_path / name)["sft/learning_rate"] for name in ("straight", "resumed")]
    assert rates[0] == rates[1]
    one, other = (load_file(tmp_path / n / "adapter" / "adapter_model.safetensors") for n in ("straight", "resumed"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("interrupted", [False, True])
def test_sft_ends_at_the_first_validation_that_reaches_its_target(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    """Validated every second step at 0.5, 0.75 and (never asked for) 1.0; a resume ends there too."""
    solved = {2: 2, 4: 3, 6: 4}
    episodes = compute_metrics([])

    def validation(session: Any, stage: str, step: int, tasks: int) -> Any:
        return msgspec.structs.replace(episodes, completion_rate=share([index < solved[step] for index in range(4)]))

    monkeypatch.setattr(sft_stage, "validate", validation)
    overrides = ["stages.cold_start.tasks=0", "stages.cold_start.demonstrations=8", "stages.sft.validate_every=2"]
    recipe = load_recipe(recipe_file, [*overrides, "stages.sft.target_completion=0.75"])
    stages = ["cold_start", "sft"]
    if interrupted:
        with pytest.raises(Interruption):
            play(tmp_path / "run", recipe, Watching("sft", at=4), only=stages)
    play(tmp_path / "run", recipe, only=stages)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["stage"] == "sft"] == [1, 2, 3, 4]
    assert read_metrics(tmp_path / "run")["sft/validation_completion"] == {2: 0.5, 4: 0.75}
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    [ended] = [event for event in events if event["event"] == "stage_finished" and event["stage"] == "sft"]
    assert ended["metrics"]["steps"] == 4


@pytest.mark.parametrize("at", [2, 3], ids=["after_a_validation", "between_validations"])
def test_E08_a_run_that_fails_inside_grpo_resumes_to_the_same_parameters(
    finished: Path, recipe_file: Path, tmp_path: Path, at: int
) -> None:
    recipe = load_recipe(recipe_file, [])
    with pytest.raises(Interruption):
        play(tmp_path / "run", recipe, Watching("grpo", at=at))
    saved = CheckpointFolder(tmp_path / "run" / "checkpoints" / "grpo").latest()
    assert saved is not None
    assert saved.step == at
    play(tmp_path / "run", recipe)
    assert_same_result(finished, tmp_path / "run", tolerance=0.0)


def test_E08_kill_9_and_the_same_command_again(finished: Path, recipe_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", "from deedrl.cli.main import main; main()"]
    command += ["run", str(recipe_file), "--out", str(folder), "--quiet"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    # In the middle of sampling the second step's groups.
    wait_until(lambda: line_count(folder / "trajectories" / "grpo.jsonl") > 8, process)
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=10) == -signal.SIGKILL
    reported = (folder / "events.jsonl").read_bytes()
    assert not (folder / "report.html").exists()
    deedrl("run", recipe_file, "--out", folder, "--quiet")
    assert (folder / "events.jsonl").read_bytes().startswith(reported)
    # The episodes that were missing ran in smaller batches, so sums differ in their last bits.
    assert_same_result(finished, folder, tolerance=1e-5)


def line_count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes], timeout_s: float = 120.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"the run ended early: {process.communicate()[1].decode()[-2000:]}")
        assert time.monotonic() < end, "the run does not get there"
        time.sleep(0.002)


# ---------------------------------------------------------------- the session


def test_all_weights_are_trained_in_float32(recipe_file: Path, tmp_path: Path) -> None:
    overrides = ["model.adapter=null", "model.dtype=auto", "stages.sft.steps=1", "stages.cold_start.tasks=0"]
    recipe = load_recipe(recipe_file, overrides)
    play(tmp_path / "run", recipe, only=["cold_start", "sft"])
    weights = load_file(tmp_path / "run" / "adapter" / "model.safetensors")
    assert {value.dtype for value in weights.values()} == {torch.float32}
    export_policy(tmp_path / "run", tmp_path / "out", merge=True)
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.float32


def test_the_baseline_is_of_the_untouched_model_even_when_it_runs_last(
    finished: Path, recipe_file: Path, tmp_path: Path
) -> None:
    recipe = load_recipe(recipe_file, [])
    play(tmp_path / "run", recipe, only=["cold_start", "sft"])
    play(tmp_path / "run", recipe, only=["baseline"])
    assert summary_of(tmp_path / "run")["before"] == summary_of(finished)["before"]


def test_the_recipes_own_prompt_is_played_and_taught(recipe_file: Path, tmp_path: Path) -> None:
    from deedrl.pipeline.context import StageContext
    from deedrl.pipeline.session import Session
    from deedrl.tracking.tracker import Tracker

    recipe = load_recipe(recipe_file, ["prompt.detail=detailed", "prompt.system=Be brief."])
    with Run.open(tmp_path / "run", recipe) as run:
        session = Session(StageContext(recipe=recipe, run=run, tracker=Tracker([]), progress=make_progress("quiet")))
        task = session.tasks("train")[0]
        spec = session.spec(task, "e", stage="s", sampling=session.sampling())
    assert (spec.prompt.detailed, spec.prompt.instructions) == (True, "Be brief.")
