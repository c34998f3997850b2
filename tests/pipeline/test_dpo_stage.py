"""The stage `dpo` on a tiny model: that it learns, what it writes and says, that an interruption changes nothing."""

from __future__ import annotations

import json
import math
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
from deedrl.errors import ConfigError, DeedRLError, StoreError
from deedrl.pipeline.alarms import displacement_alarm
from deedrl.pipeline.checkpoint import CheckpointFolder
from deedrl.pipeline.cost import estimate
from deedrl.pipeline.hand_check import hand_check_text
from deedrl.pipeline.preference_data import PreferenceReport
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.work import TELLING_PAIRS
from deedrl.planning.machine import GIB, Machine
from deedrl.reports.data import report_data
from deedrl.store.jsonl import TrajectoryStore
from deedrl.tracking.jsonl import read_metrics
from deedrl.training.preferences import PreferencePair
from deedrl.types import Action, Completion, RewardBreakdown, Step, ToolOutput, Trajectory, Verdict

STEPS = 10
TASKS = {"train": 16, "validation": 16, "test": 4, "test_unseen": 0}
DPO: dict[str, Any] = {
    "stage": "dpo",
    "tasks": 16,
    "samples_per_task": 8,
    "kinds": ["outcome"],
    "steps": STEPS,
    "pairs_per_step": 4,
    "learning_rate": 1e-3,
    "sft_coefficient": 1.0,  # pairs alone make what is chosen less likely too, on some processors at once
    "schedule": "constant",
    "held_out_share": 0.2,
    "validate_every": 4,
    "validation_tasks": 16,
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


def made(taught: dict[str, Any], *before: dict[str, Any], **changes: Any) -> Any:
    return recipe_from(taught | {"stages": [*before, DPO | changes], "tasks": TASKS})


@pytest.fixture(scope="module")
def finished(taught: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run of the command; tests only read it."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "recipe.yaml").write_text(dump_yaml(taught | {"stages": [DPO], "tasks": TASKS}))
    with pytest.raises(SystemExit) as end:
        main(["dpo", str(folder / "recipe.yaml"), "--run", str(folder / "whole"), "--quiet"])
    assert not end.value.code
    return folder / "whole"


def report_of(folder: Path) -> PreferenceReport:
    path = folder / "preferences" / "dpo" / "preferences.json"
    return msgspec.json.decode(path.read_bytes(), type=PreferenceReport)


# ---------------------------------------------------------------- learning


def test_completion_rises_on_tasks_that_no_pair_is_of(finished: Path) -> None:
    completion = read_metrics(finished)["dpo/validation_completion"]
    assert set(completion) == {0, 4, 8, 10}
    assert completion[0] is not None
    assert completion[0] < 0.2
    assert max(value for value in completion.values() if value is not None) > 0.6


def test_pairs_that_were_not_learnt_from_are_told_apart_too(finished: Path) -> None:
    logged = read_metrics(finished)
    assert logged["dpo/reward_margin"][1] == pytest.approx(0, abs=1e-4)
    assert logged["dpo/kl"][1] == pytest.approx(0, abs=1e-4)
    assert logged["dpo/held_out_reward_accuracy"][STEPS] > 0.9  # type: ignore[operator]
    assert logged["dpo/held_out_reward_margin"][STEPS] > 0.1  # type: ignore[operator]


# ---------------------------------------------------------------- what is written, logged and said


def test_all_figures_are_logged_and_the_report_shows_them(finished: Path) -> None:
    logged = read_metrics(finished)
    of_sides = [f"{side}_{what}" for side in ("chosen", "rejected") for what in ("reward", "logprob", "change")]
    for name in ("loss", "reward_accuracy", "reward_margin", *of_sides, "kl", "grad_norm", "learning_rate"):
        assert set(logged[f"dpo/{name}"]) == set(range(1, STEPS + 1)), name
    data = report_data(finished)
    assert {"reward_accuracy", "loss"} <= {one.name for one in data.series if one.stage == "dpo"}
    [row] = data.stages
    figures = dict(row.figures)
    assert int(float(figures["pairs"])) == len(report_of(finished).pairs)
    assert figures["steps"] == str(STEPS)


def test_F20_the_best_validated_weights_become_the_policy(finished: Path) -> None:
    completion = {step: value or 0.0 for step, value in read_metrics(finished)["dpo/validation_completion"].items()}
    best = CheckpointFolder(finished / "checkpoints" / "dpo").best()
    assert best is not None
    assert completion[best.step] == max(completion.values())
    adapter = load_file(finished / "adapter" / "adapter_model.safetensors")
    for key, value in adapter.items():
        assert torch.equal(value, best.tensors[f"parameter.{key.removesuffix('.weight')}.default.weight"])


def test_the_report_of_pairs_adds_up(finished: Path) -> None:
    report = report_of(finished)
    assert report.stores == {"dpo": 16 * 8}
    assert report.episodes.read == report.episodes.usable == 16 * 8
    kept = len(report.pairs) + len(report.held_out)
    assert sum(report.built.values()) - sum(report.dropped.values()) == sum(report.kept.values()) == kept
    assert {p.task_id for p in report.pairs}.isdisjoint({p.task_id for p in report.held_out})
    stored = {t.episode_id: t for t in TrajectoryStore(finished / "trajectories" / "dpo.jsonl")}
    for pair in (*report.pairs, *report.held_out):
        chosen, rejected = stored[pair.chosen], stored[pair.rejected]
        assert chosen.task_id == rejected.task_id == pair.task_id
        assert (chosen.solved, rejected.solved) == (True, False)
        assert pair.margin == pytest.approx((chosen.reward or 0) - (rejected.reward or 0))
        assert (pair.chosen_tokens, pair.rejected_tokens) == (chosen.sampled_tokens, rejected.sampled_tokens)


def test_pairs_to_check_by_hand_are_written(finished: Path) -> None:
    text = (finished / "preferences" / "dpo" / "hand-check.md").read_text()
    assert text.count("\n## ") == min(8, len(report_of(finished).pairs))
    assert "| outcome | solved" in text


def test_H11_H14_hand_check_shows_texts_as_text_and_no_secrets() -> None:
    def episode(name: str, text: str, solved: bool) -> Trajectory:
        step = Step(
            index=0,
            observation="Do | it\nnow",
            completion=Completion(text=text),
            action=Action(),
            tool_output=ToolOutput(text="done"),
        )
        verdict, breakdown = Verdict(solved=solved), RewardBreakdown(total=float(solved))
        return Trajectory(episode_id=name, task_id="t", steps=(step,), verdict=verdict, breakdown=breakdown)

    episodes = {"a": episode("a", "<b>x</b>\n|", True), "b": episode("b", "hf_abcde\x1b[0mfghij0123456789", False)}
    pair = PreferencePair(
        kind="outcome", task_id="t", chosen="a", rejected="b", margin=1.0, chosen_tokens=1, rejected_tokens=2
    )
    text = hand_check_text([pair], episodes)
    assert r"| 1 | &lt;b&gt;x&lt;/b&gt;<br>\|<br>→ done | \[redacted\]<br>→ done |" in text
    assert r"Do \| it<br>now" in text
    assert "hf_" not in text


def test_what_became_of_the_episodes_is_said(taught: dict[str, Any], tmp_path: Path) -> None:
    progress = Watching()
    play(tmp_path / "run", made(taught, steps=1, validate_every=0, hand_check=0, pairs_per_task=1), progress)
    [line] = [text for text in progress.said if text.startswith("dpo: ")]
    report = report_of(tmp_path / "run")
    assert f"{len(report.pairs)} pairs of {report.tasks} tasks to learn from, {len(report.held_out)} held out" in line
    assert f"pairs per task {report.dropped['pairs_per_task']}" in line
    assert not (tmp_path / "run" / "preferences" / "dpo" / "hand-check.md").exists()


def test_chosen_episodes_that_become_unlikely_are_said_with_a_remedy() -> None:
    figures = {"chosen_change": -0.3, "rejected_change": -0.9, "reward_margin": 2.0}
    assert "sft_coefficient" in (displacement_alarm(figures) or "")
    assert displacement_alarm(figures | {"chosen_change": -0.05}) is None
    assert displacement_alarm(figures | {"reward_margin": -0.1}) is None


def test_displacement_is_said_once(taught: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deedrl.pipeline.dpo_stage.displacement_alarm", lambda figures: "both go down")
    progress = Watching()
    play(tmp_path / "run", made(taught, steps=3, validate_every=0), progress)
    assert progress.warnings.count("dpo: both go down") == 1


# ---------------------------------------------------------------- stored episodes


@pytest.mark.parametrize("detailed", [False, True], ids=["own_prompt", "other_prompt"])
def test_pairs_come_from_training_stores_alone_and_demonstrations_beat_failures_of_the_policy(
    taught: dict[str, Any], tmp_path: Path, detailed: bool
) -> None:
    """Demonstrations have no recorded tokens, and with hints the policy was asked otherwise than it is taught.

    Rendered under the recipe's prompt both begin alike, and alike with what was recorded under it.
    """
    start = {"stage": "cold_start", "tasks": 16, "samples_per_task": 1, "guided_share": 0.0}
    start |= {"detailed_prompt": detailed, "prompt_variants": ["plain"], "stability_repeats": 0, "demonstrations": 16}
    before = [{"stage": "baseline"}, start, {"stage": "evaluate", "name": "again", "split": "train"}]
    folder = play(tmp_path / "run", made(taught, *before, tasks=0, steps=2, validate_every=0, held_out_share=0.0))
    report = report_of(folder)
    assert set(report.stores) == {
        "cold-start-positives",
        "cold-start-negatives",
        "cold_start-samples",
        "cold_start-demonstrations",
    }
    assert report.episodes.repeated > 0, "positives are in the store of what was demonstrated too"
    assert report.pairs
    assert all("demonstration" in pair.chosen for pair in report.pairs)
    assert all("sample" in pair.rejected for pair in report.pairs)


def test_named_stores_alone_are_read(taught: dict[str, Any], tmp_path: Path) -> None:
    grpo = {"stage": "grpo", "steps": 1, "tasks_per_step": 8, "group_size": 8, "temperature": 1.5, "validate_every": 0}
    folder = play(
        tmp_path / "run",
        made(taught, grpo, tasks=0, stores=["grpo"], steps=1, validate_every=0, held_out_share=0.0),
    )
    assert set(report_of(folder).stores) == {"grpo"}


def test_no_pairs_is_an_error_that_says_what_to_do(taught: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DeedRLError, match=r"no pairs to learn from: .* raise tasks \(2\) and samples_per_task"):
        play(tmp_path / "one", made(taught, tasks=2, samples_per_task=1))
    with pytest.raises(DeedRLError, match=r"none is left \(dropped: small margins \d+\); lower min_margin \(9\)"):
        play(tmp_path / "clean", made(taught, min_margin=9.0))
    assert report_of(tmp_path / "clean").dropped["small_margins"] > 0, "the counts are there to look at"


# ---------------------------------------------------------------- resume


def assert_same_result(one: Path, other: Path) -> None:
    first, second = (CheckpointFolder(folder / "checkpoints" / "dpo").latest() for folder in (one, other))
    assert first is not None
    assert second is not None
    assert first.step == second.step == STEPS
    assert first.state == second.state
    assert first.tensors.keys() == second.tensors.keys()
    for name, value in first.tensors.items():
        assert torch.equal(second.tensors[name], value), name
    adapters = [load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (one, other)]
    assert all(torch.equal(adapters[1][name], value) for name, value in adapters[0].items())
    assert read_metrics(one) == read_metrics(other)


@pytest.mark.parametrize("at", [4, 5], ids=["after_a_validation", "halfway"])
def test_C17_an_interrupted_stage_resumes_to_the_same_parameters_moments_and_figures(
    finished: Path, taught: dict[str, Any], tmp_path: Path, at: int
) -> None:
    with pytest.raises(Interruption):
        play(tmp_path / "run", made(taught), Watching("dpo", at=at))
    # What was stored since must not change the pairs that the stage has begun to learn from: it contradicts them all.
    store = tmp_path / "run" / "trajectories" / "dpo.jsonl"
    late = [
        msgspec.structs.replace(
            t,
            episode_id=f"late-{t.episode_id}",
            verdict=Verdict(solved=not t.solved),
            breakdown=RewardBreakdown(total=1.0 - (t.reward or 0.0)),
        )
        for t in TrajectoryStore(store)
    ]
    TrajectoryStore(store).append_many(late)
    assert_same_result(finished, play(tmp_path / "run", made(taught)))


def test_a_stage_that_lost_its_episodes_says_so(taught: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Interruption):
        play(tmp_path / "run", made(taught), Watching("dpo", at=1))
    (tmp_path / "run" / "trajectories" / "dpo.jsonl").unlink()
    with pytest.raises(StoreError, match=r"are missing .* put the stores back"):
        play(tmp_path / "run", made(taught))


# ---------------------------------------------------------------- settings and cost


def problem(*before: dict[str, Any], **changes: Any) -> str:
    stage = {"stage": "dpo", "tasks": 4, "epochs": 1} | changes.pop("dpo", {})
    with pytest.raises(ConfigError) as error:
        recipe_from({"name": "tiny", "stages": [*before, stage]} | changes)
    return str(error.value)


@pytest.mark.parametrize(
    ("dpo", "message"),
    [
        ({"steps": 3}, "stages.dpo: expected exactly one of steps and epochs, got steps and epochs"),
        ({"epochs": None}, "stages.dpo: expected exactly one of steps and epochs, got none"),
        ({"final_learning_rate": 1.0}, "stages.dpo.final_learning_rate: expected at most learning_rate"),
        ({"kinds": []}, "stages.dpo.kinds: expected at least one, got none"),
        ({"kinds": ["outcome", "outcome"]}, "stages.dpo.kinds: expected each once, got outcome twice"),
        ({"length_band": [0.7, 0.3]}, "stages.dpo.length_band: expected [low, high] with low <= high"),
        ({"tasks": 0}, "stages.dpo.tasks: expected above 0 where no other stage plays episodes"),
        ({"loss": "hinge"}, "loss"),
        ({"label_smoothing": 0.5}, "label_smoothing"),
        ({"sources": ["guide"]}, "sources"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_by_name(dpo: dict[str, Any], message: str) -> None:
    assert message in problem(dpo=dpo)


def test_the_rest_of_the_recipe_must_fit() -> None:
    start = {"stage": "cold_start", "demonstrations": 4}
    assert "stages.dpo.temperature: expected above 0" in problem(sampling={"temperature": 0.0})
    assert "stages.dpo: validation needs tasks" in problem(tasks={"validation": 0})
    assert "got 'cold_start-sample'; did you mean 'cold_start-samples'?" in problem(
        start, dpo={"stores": ["cold_start-sample"]}
    )
    evaluations = problem({"stage": "evaluate"}, start, dpo={"stores": ["evaluate"], "tasks": 0})
    assert "stages.dpo.stores: expected stores that training stages fill, got 'evaluate'" in evaluations
    assert "stages.dpo.stores: expected 'dpo' among them" in problem(start, dpo={"stores": ["cold-start-positives"]})


def test_cost_of_episodes_steps_and_validations() -> None:
    stage = {"stage": "dpo", "tasks": 6, "samples_per_task": 4, "steps": 5, "pairs_per_step": 3, "validate_every": 5}
    machine = Machine(cores=1, memory_bytes=8 * GIB, fast_bf16=False)

    def cost(**changes: Any) -> Any:
        return estimate(recipe_from({"name": "tiny", "stages": [stage | {"validation_tasks": 7} | changes]}), machine)

    [found] = cost().stages
    assert found.episodes == 6 * 4 + 2 * 7
    [twice] = cost(steps=10, validate_every=10).stages
    assert twice.trained_tokens == 2 * found.trained_tokens
    [by_pairs] = cost(steps=None, epochs=1, validate_every=0).stages
    pairs = 6 * 8 * TELLING_PAIRS * 0.9  # of 6 tasks up to 8 each, a tenth of them held out
    assert by_pairs.trained_tokens == pytest.approx(found.trained_tokens * math.ceil(round(pairs) / 3) / 5)
    assert cost().memory.reference == 0


def test_the_command_runs_dpo_stages_only(finished: Path) -> None:
    events = [json.loads(line) for line in (finished / "events.jsonl").read_text().splitlines()]
    assert [event["stage"] for event in events if event["event"] == "stage_finished"] == ["dpo"]
