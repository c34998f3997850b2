"""The stage `reward_model` on a tiny model: it ranks, is saved whole, rewards a policy, and says when it drifts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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
from deedrl.errors import ConfigError, DeedRLError, ModelError, StoreError
from deedrl.pipeline import learned_terms
from deedrl.pipeline.alarms import agreement_alarm, drift_alarm, keeps_falling
from deedrl.pipeline.cost import estimate
from deedrl.pipeline.learned_terms import learned_figures, with_learned_terms
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.reward_model_data import RewardData
from deedrl.pipeline.reward_model_folder import newest_version, open_version, place, placed_for
from deedrl.pipeline.reward_model_scoring import reward_model_of, scored_episodes, session_of
from deedrl.pipeline.reward_model_stage import agreements, refresh
from deedrl.pipeline.run import Run
from deedrl.pipeline.session import Session
from deedrl.pipeline.stage_figures import StageFigures
from deedrl.planning.machine import GIB, Machine
from deedrl.reports.progress import make_progress
from deedrl.store.jsonl import TrajectoryStore
from deedrl.store.labels import PairLabel, append_label
from deedrl.tracking.jsonl import read_metrics
from deedrl.training.rank_agreement import Place
from deedrl.types import Failure, RewardBreakdown, TerminationReason, TermScore, Trajectory, Verdict

STEPS = 12
TASKS = {"train": 16, "validation": 8, "test": 4, "test_unseen": 0}
MODEL: dict[str, Any] = {
    "stage": "reward_model",
    "tasks": 16,
    "samples_per_task": 8,
    "kinds": ["outcome"],
    "pairs_per_task": 3,
    "steps": STEPS,
    "pairs_per_step": 8,
    "learning_rate": 3e-3,
    "schedule": "constant",
    "held_out_share": 0.25,
    "calibrate_every": 4,
}
GRPO = {"stage": "grpo", "steps": 1, "tasks_per_step": 4, "group_size": 4, "validate_every": 0, "refill_attempts": 0}


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


def made(taught: dict[str, Any], *after: dict[str, Any], rubric: dict[str, float] | None = None, **changes: Any) -> Any:
    return recipe_from(taught | {"stages": [MODEL | changes, *after], "tasks": TASKS, "rubric": rubric or {}})


@pytest.fixture(scope="module")
def finished(taught: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run of the command; tests only read it."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "recipe.yaml").write_text(dump_yaml(taught | {"stages": [MODEL], "tasks": TASKS}))
    with pytest.raises(SystemExit) as end:
        main(["reward-model", "train", str(folder / "recipe.yaml"), "--run", str(folder / "whole"), "--quiet"])
    assert not end.value.code
    return folder / "whole"


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copied"))


def model_folder(run: Path) -> Path:
    return run / "reward-models" / "reward_model"


def data_of(run: Path, version: int = 1) -> RewardData:
    return msgspec.json.decode((model_folder(run) / f"data-v{version:04d}.json").read_bytes(), type=RewardData)


@contextmanager
def opened(run: Path) -> Iterator[tuple[Session, Any]]:
    with session_of(run, make_progress("quiet")) as session:
        yield session, reward_model_of(session, None)


def stored(run: Path, name: str = "reward_model") -> dict[str, Trajectory]:
    return {t.episode_id: t for t in TrajectoryStore(run / "trajectories" / f"{name}.jsonl")}


# ---------------------------------------------------------------- learning


def test_solved_episodes_are_ranked_above_failed_ones_of_tasks_that_were_not_learnt_from(finished: Path) -> None:
    logged = read_metrics(finished)
    accuracy = logged["reward_model/calibration_accuracy"]
    assert set(accuracy) == {0, 4, 8, 12}
    assert accuracy[0] == 0.5, "a fresh head tells nothing apart"
    assert max(value or 0.0 for value in accuracy.values()) > 0.9
    assert max(value or 0.0 for value in logged["reward_model/calibration_tau"].values()) > 0.8
    for name in ("loss", "pair_accuracy", "margin", "score_mean", "grad_norm", "learning_rate"):
        assert set(logged[f"reward_model/{name}"]) == set(range(1, STEPS + 1)), name


def test_the_policy_stays_as_it_is(finished: Path) -> None:
    assert not (finished / "adapter").exists()


def test_labels_add_up_and_calibration_tasks_are_not_learnt_from(finished: Path) -> None:
    data, episodes = data_of(finished), stored(finished)
    assert data.stores == {"reward_model": 16 * 8}
    assert data.comparisons
    assert data.held_out
    assert {one.task_id for one in data.comparisons}.isdisjoint({one.task_id for one in data.held_out})
    for one in (*data.comparisons, *data.held_out):
        assert (episodes[one.better.episode_id].solved, episodes[one.worse.episode_id].solved) == (True, False)


def test_turns_labelled_by_their_siblings_teach_a_process_model(taught: dict[str, Any], tmp_path: Path) -> None:
    folder = play(tmp_path / "run", made(taught, reads="process", learning_rate=1e-2, pairs_per_step=24))
    data = data_of(folder)
    assert data.turns
    assert not data.comparisons
    accuracy = read_metrics(folder)["reward_model/calibration_accuracy"]
    assert max(value or 0.0 for value in accuracy.values()) > 0.9
    with opened(folder) as (session, stage):
        saved = newest_version(model_folder(folder))
        assert saved is not None
        found = list(scored_episodes(session, stage, saved, []))
    assert found
    assert all(len(one.turns) >= 1 and one.score == pytest.approx(one.turns[-1], abs=1e-4) for one in found)
    right = [
        good.value > bad.value
        for good in found
        for bad in found
        if (good.task_id, good.solved, bad.solved) == (bad.task_id, True, False)
    ]
    assert sum(right) > 0.9 * len(right) > 0


# ---------------------------------------------------------------- saved and loaded


def test_H10_what_is_saved_is_peft_safetensors_and_json_alone(finished: Path) -> None:
    names = {path.name for path in (model_folder(finished) / "v0001").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "head.safetensors", "reward_model.json"} <= names
    assert {Path(name).suffix for name in names} <= {".json", ".safetensors", ".md"}


def test_a_saved_model_scores_as_the_one_that_was_trained(finished: Path) -> None:
    saved = newest_version(model_folder(finished))
    assert saved is not None
    [part] = saved.info.calibration
    assert part.hash == saved.calibration[0].hash
    with opened(finished) as (session, stage), placed_for(session.loaded, "again", 4096, saved) as placed:
        *found, _ = agreements(placed.model, saved.calibration)
        assert found == [part.agreement]
        scored = {one.episode_id: one for one in scored_episodes(session, stage, saved, [])}
        held = [Place(name) for name in saved.calibration[0].episodes]
        for end, score in placed.model.scores(saved.calibration[0].episodes, held).items():
            assert scored[end.episode_id].score == pytest.approx(score, abs=1e-5)
            assert 0 < scored[end.episode_id].value < 1
    values = [scored[name].value for name in saved.calibration[0].episodes]
    assert 0.35 < sum(values) / len(values) < 0.65, "1/2 is what calibration episodes have on average"


def test_another_base_model_is_refused(finished: Path, tiny_models: Any) -> None:
    from deedrl.policies.local.model import add_adapter

    saved = newest_version(model_folder(finished))
    other = tiny_models(["Other words altogether."] * 20).load(initializer_range=0.1)
    adapted = add_adapter(other, rank=4, alpha=8, dropout=0.0, target="all-linear", seed=0)
    with pytest.raises(ModelError, match=r"this reward model was trained on .* take the same model"):
        place(adapted, "x", 4096, saved)


def test_H10_a_pickled_file_and_a_changed_calibration_set_are_refused(copied: Path) -> None:
    version = model_folder(copied) / "v0001"
    content = json.loads((version / "calibration.json").read_text())
    content[0]["comparisons"] = content[0]["comparisons"][1:]
    (version / "calibration.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match="it was changed since"):
        open_version(version)
    (version / "head.pt").write_bytes(b"\x80\x04")
    with pytest.raises(ModelError, match=r"head\.pt: refused"):
        open_version(version)


def test_an_unfinished_version_does_not_count(copied: Path) -> None:
    (model_folder(copied) / ".v0002").mkdir()
    found = newest_version(model_folder(copied))
    assert found is not None
    assert found.info.version == 1
    (model_folder(copied) / "v0002").mkdir()
    with pytest.raises(ModelError, match="no reward model at"):
        newest_version(model_folder(copied))


@pytest.mark.parametrize("at", [4, 6], ids=["after_a_calibration", "halfway"])
def test_C17_an_interrupted_stage_resumes_to_the_same_model_and_figures(
    finished: Path, taught: dict[str, Any], tmp_path: Path, at: int
) -> None:
    with pytest.raises(Interruption):
        play(tmp_path / "run", made(taught), Watching("reward_model", at=at))
    play(tmp_path / "run", made(taught))
    assert read_metrics(finished) == read_metrics(tmp_path / "run")
    for name in ("adapter_model.safetensors", "head.safetensors"):
        one, other = (load_file(model_folder(run) / "v0001" / name) for run in (finished, tmp_path / "run"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


# ---------------------------------------------------------------- a term of the rubric


@pytest.fixture(scope="module")
def rewarded(taught: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    stages = GRPO | {"steps": 2}, {"stage": "evaluate"}
    folder = tmp_path_factory.mktemp("rewarded") / "run"
    return play(folder, made(taught, stages[0], stages[1], rubric={"reward_model": 1.0}))


def test_what_a_policy_learns_from_is_rewarded_by_the_model_and_nothing_else_is(rewarded: Path) -> None:
    for trajectory in stored(rewarded, "grpo").values():
        assert trajectory.breakdown is not None
        term = trajectory.breakdown.terms["reward_model"]
        assert term.value is not None
        assert 0 <= term.value <= 1
        assert term.weight == pytest.approx(0.5), "1.0 beside the environment's 0.7 and 0.3"
        assert term.gate == (1.0 if trajectory.solved else 0.0), "case F15: without progress it pays nothing"
        parts = sum(score.contribution or 0.0 for score in trajectory.breakdown.terms.values())
        assert trajectory.reward == pytest.approx(parts)
    for store in ("grpo-validation", "evaluate", "reward_model"):
        for trajectory in stored(rewarded, store).values():
            assert trajectory.breakdown is not None
            assert "reward_model" not in trajectory.breakdown.terms, store
    logged = read_metrics(rewarded)
    for name in ("mean", "compared", "agreeing"):
        assert set(logged[f"grpo/reward_model_{name}"]) == {1, 2}


def test_a_resume_scores_what_was_played_and_not_yet_scored(
    taught: dict[str, Any], tmp_path: Path, rewarded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = made(taught, GRPO | {"steps": 2}, {"stage": "evaluate"}, rubric={"reward_model": 1.0})

    def killed(*_: Any) -> Any:
        raise Interruption

    with monkeypatch.context() as patched:
        patched.setattr(learned_terms, "_with_terms", killed)
        with pytest.raises(Interruption):
            play(tmp_path / "run", recipe)
    played = stored(tmp_path / "run", "grpo")
    assert played
    assert all(t.breakdown and "reward_model" not in t.breakdown.terms for t in played.values())
    play(tmp_path / "run", recipe)
    assert read_metrics(tmp_path / "run")["grpo/reward"] == read_metrics(rewarded)["grpo/reward"]
    assert {n: t.breakdown for n, t in stored(tmp_path / "run", "grpo").items()} == {
        n: t.breakdown for n, t in stored(rewarded, "grpo").items()
    }


def test_a_refresh_in_between_changes_no_reward_of_a_stage_that_has_begun(rewarded: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(rewarded, tmp_path / "run"))
    newer = model_folder(folder) / "v0002"
    shutil.copytree(model_folder(folder) / "v0001", newer)
    info = json.loads((newer / "reward_model.json").read_text())
    (newer / "reward_model.json").write_text(json.dumps(info | {"version": 2}))
    with opened(folder) as (session, _):
        assert learned_terms._version_for(session, "grpo", "reward_model").info.version == 1
        assert learned_terms._version_for(session, "other", "reward_model").info.version == 2


def test_C03_D02_infrastructure_trouble_is_never_scored_and_what_cannot_be_read_is_unscored(rewarded: Path) -> None:
    failure = Failure(kind="OSError", phase="step", message="")
    broken = Trajectory(
        episode_id="broken", task_id="t", termination=TerminationReason.ENVIRONMENT_ERROR, failure=failure
    )
    mute = Trajectory(
        episode_id="mute",
        task_id="t",
        termination=TerminationReason.TOKEN_LIMIT,
        verdict=Verdict(solved=False),
        breakdown=RewardBreakdown(total=0.0),
    )
    with opened(rewarded) as (session, _):
        first, second = with_learned_terms(session, "grpo", "extra", [broken, mute])
        assert first is broken
        assert second.breakdown is not None
        assert second.breakdown.terms["reward_model"].value is None
        assert second.reward is None
    (rewarded / "trajectories" / "extra.jsonl").unlink()


def test_a_model_that_is_not_trained_yet_is_said_and_names_must_differ(taught: dict[str, Any], tmp_path: Path) -> None:
    early = recipe_from(taught | {"stages": [GRPO, MODEL], "tasks": TASKS, "rubric": {"reward_model": 0.3}})
    with pytest.raises(DeedRLError, match="gives the reward model 'reward_model' a weight and it is not trained yet"):
        play(tmp_path / "early", early)
    twice = made(taught, GRPO, rubric={"chatter": 0.3}, name="chatter")
    with pytest.raises(ConfigError, match=r"rubric\.chatter: the environment's rubric has a term of this name"):
        play(tmp_path / "twice", twice)


# ---------------------------------------------------------------- drift


def test_a_fall_of_agreement_is_an_alarm_and_several_in_a_row_are_the_end() -> None:
    healthy = [0.5, 0.8, 0.9, 0.85, 0.92, 0.9]
    assert not any(agreement_alarm(healthy[:n], 0.15) for n in range(len(healthy) + 1))
    assert "fell to 60% from 90%" in (agreement_alarm([0.5, 0.9, 0.6], 0.15) or "")
    falling = [0.5, 0.9, 0.7, 0.6, 0.65]
    assert keeps_falling(falling, 0.15, 3)
    assert not keeps_falling(falling[:4], 0.15, 3)
    assert not keeps_falling(falling, 0.15, 0)
    assert not keeps_falling([], 0.15, 3)


def test_fresh_episodes_that_are_ranked_worse_than_at_the_start_are_an_alarm_once_there_are_enough() -> None:
    healthy, drifted = [(50.0, 42.0)] * 8, [(50.0, 42.0)] * 4 + [(50.0, 28.0)] * 4
    assert drift_alarm(healthy, 100, 0.15) is None
    assert "ranks 56% of the latest" in (drift_alarm(drifted, 100, 0.15) or "")
    assert drift_alarm(drifted, 1000, 0.15) is None, "too few pairs to tell"
    assert drift_alarm([], 100, 0.15) is None
    assert drift_alarm([(0.0, 0.0)] * 5, 1, 0.15) is None


def test_learned_figures_by_hand() -> None:
    def episode(name: str, value: float | None, solved: bool | None, task: str = "t") -> Trajectory:
        terms = {"rm": TermScore(value=value, weight=1.0)}
        verdict = None if solved is None else Verdict(solved=solved)
        breakdown = RewardBreakdown(total=value, terms=terms)
        return Trajectory(episode_id=name, task_id=task, verdict=verdict, breakdown=breakdown)

    episodes = [
        episode("a", 0.9, True),
        episode("b", 0.4, False),
        episode("c", 0.9, False),
        episode("d", None, False),
        episode("e", 0.2, None),
        episode("f", 0.1, False, task="u"),
    ]
    figures = learned_figures(["rm"], episodes)
    assert figures["rm_mean"] == pytest.approx((0.9 + 0.4 + 0.9 + 0.2 + 0.1) / 5)
    assert (figures["rm_compared"], figures["rm_agreeing"], figures["rm_agreement"]) == (2, 1.5, 0.75)
    assert "rm_agreement" not in learned_figures(["rm"], episodes[:1])
    assert learned_figures([], episodes) == {}


def metrics_of(folder: Path, rows: list[tuple[int, int]]) -> None:
    from deedrl.tracking.jsonl import JsonlSink

    sink = JsonlSink(folder)
    for step, (compared, agreeing) in enumerate(rows, start=1):
        names = {"grpo/reward_model_compared": compared, "grpo/reward_model_agreeing": agreeing}
        sink.log(names, step=step, stage="grpo")


@pytest.mark.parametrize(
    ("rows", "said", "over"),
    [
        ([(60, 50)] * 6, 0, False),
        ([(60, 50)] * 3 + [(60, 20)] * 2, 1, False),
        ([(60, 50)] * 3 + [(60, 20)] * 5, 1, True),
    ],
    ids=["healthy", "drifted", "drifted_for_long"],
)
def test_a_policy_that_leaves_the_model_behind_is_said_and_stopped(
    taught: dict[str, Any], tmp_path: Path, rows: list[tuple[int, int]], said: int, over: bool
) -> None:
    recipe = made(taught, GRPO, rubric={"reward_model": 0.3})
    with Run.open(tmp_path / "run", recipe):
        pass
    metrics_of(tmp_path / "run", rows)
    with opened_like(tmp_path / "run") as session:
        alarms, stop = learned_terms.drift(session, StageFigures.logged(tmp_path / "run", "grpo", len(rows)))
        assert (len(alarms), stop) == (said, over)
        early = StageFigures.logged(tmp_path / "run", "grpo", 2)
        assert learned_terms.drift(session, early) == ([], False), "later lines are not looked at"


@contextmanager
def opened_like(folder: Path) -> Iterator[Session]:
    with session_of(folder, make_progress("quiet")) as session:
        yield session


def test_an_online_stage_ends_where_its_model_drifts(
    taught: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deedrl.pipeline.online.drift", lambda session, seen: (["it drifts"], len(seen["reward"]) == 2))
    progress = Watching()
    play(tmp_path / "run", made(taught, GRPO | {"steps": 5}, steps=2), progress)
    assert set(read_metrics(tmp_path / "run")["grpo/reward"]) == {1, 2}
    assert progress.warnings.count("grpo: it drifts") == 2
    assert any("no longer agrees with the verifier; stopping here" in text for text in progress.said)


# ---------------------------------------------------------------- people's labels, refresh


def pairs_to_label(run: Path) -> list[tuple[str, str]]:
    """Solved and failed episodes of tasks outside the calibration set that were not compared yet."""
    data = data_of(run)
    known = {frozenset((one.better.episode_id, one.worse.episode_id)) for one in data.comparisons}
    held = {one.task_id for one in data.held_out}
    by_task: dict[str, tuple[list[str], list[str]]] = {}
    for t in stored(run).values():
        if t.task_id not in held and t.solved is not None:
            by_task.setdefault(t.task_id, ([], []))[t.solved].append(t.episode_id)
    return [
        (good, bad)
        for failed, solved in by_task.values()
        for good in solved
        for bad in failed
        if frozenset((good, bad)) not in known
    ]


def label(run: Path, choice: str, rater: str = "anna") -> int:
    pairs = pairs_to_label(run)
    for good, bad in pairs:
        append_label(run / "labels.jsonl", PairLabel(left=good, right=bad, choice=choice, rater=rater))  # type: ignore[arg-type]
    return len(pairs)


def test_a_refresh_goes_on_from_the_old_model_and_keeps_its_calibration_set(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = label(copied, "left")
    assert count > 4
    with pytest.raises(SystemExit) as end:
        main(["reward-model", "refresh", "--run", str(copied), "--quiet"])
    assert not end.value.code
    before, after = (open_version(model_folder(copied) / f"v000{n}") for n in (1, 2))
    assert after.calibration[0] == before.calibration[0]
    assert len(after.calibration) == 2
    assert data_of(copied, 2).labelled == count
    shown = capsys.readouterr().out
    assert f"calibration set 1 ({before.info.calibration[0].hash[:12]}):" in shown
    assert "not there yet ->" in shown
    one, two = (set(map(str, data_of(copied, n).learnt_from)) for n in (1, 2))
    assert one.isdisjoint(two)


def test_labels_that_contradict_the_old_ones_are_an_alarm_and_the_weights_that_agreed_are_kept(copied: Path) -> None:
    """The planted drift: what people say now is the opposite of what the calibration set says."""
    label(copied, "right")
    progress = Watching()
    with session_of(copied, progress) as session:
        stage = msgspec.structs.replace(
            reward_model_of(session, None), steps=60, calibrate_every=3, held_out_share=0.0, learning_rate=1e-2
        )
        before, after = refresh(session, stage, [])
    assert any("pairwise accuracy on the calibration set fell" in text for text in progress.warnings)
    assert any("agreement fell 3 times in a row; stopping here" in text for text in progress.said)
    assert max(read_metrics(copied)["reward_model-v2/loss"]) < 60
    assert after.info.calibration[0].agreement == before.info.calibration[0].agreement


def test_nothing_new_to_learn_from_is_an_error_that_says_what_to_do(copied: Path) -> None:
    with opened(copied) as (session, stage), pytest.raises(DeedRLError, match=r"label some \(deedrl label RUN\)"):
        refresh(session, stage, [])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"left":"nobody","right":"RIGHT","choice":"left"}',
            "line 1: .* this run's training, got 'nobody'",
        ),
        ('{"left":"LEFT","right":"OTHER","choice":"left"}', "line 1: expected two episodes of one task"),
        ('{"left":"LEFT"}', "line 1: expected one label as a JSON object"),
    ],
)
def test_labels_that_cannot_be_used_are_named_by_their_line(copied: Path, line: str, message: str) -> None:
    [(left, right), *_] = pairs_to_label(copied)
    other = next(t.episode_id for t in stored(copied).values() if t.task_id != stored(copied)[left].task_id)
    path = copied / "labels.jsonl"
    path.write_text(line.replace("LEFT", left).replace("RIGHT", right).replace("OTHER", other) + "\n")
    with opened(copied) as (session, stage), pytest.raises(StoreError, match=message):
        refresh(session, stage, [])


def test_most_raters_decide_and_an_even_split_is_a_tie(copied: Path) -> None:
    from deedrl.pipeline.reward_model_data import labelled_comparisons

    [(good, bad), (other, worse), *_] = pairs_to_label(copied)
    path = copied / "labels.jsonl"
    for rater, choice in (("anna", "left"), ("ben", "right"), ("cleo", "right"), ("dan", "skip")):
        append_label(path, PairLabel(left=good, right=bad, choice=choice, rater=rater))  # type: ignore[arg-type]
    for rater, choice in (("anna", "left"), ("ben", "right")):
        append_label(path, PairLabel(left=other, right=worse, choice=choice, rater=rater))  # type: ignore[arg-type]
    with opened(copied) as (session, stage):
        found = {one.better.episode_id: one for one in labelled_comparisons(session, stage, [path])}
    assert (found[bad].worse.episode_id, found[bad].tie) == (good, False)
    assert [one.tie for name, one in found.items() if name in (other, worse)] == [True]


def test_the_command_scores_episodes_and_says_how_far_labels_agree(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["reward-model", "score", "--run", str(copied), "--quiet"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["episode_id"] for row in rows} == stored(copied).keys()
    count = label(copied, "left")
    with pytest.raises(SystemExit):
        main(["reward-model", "score", "--run", str(copied), "--labels", str(copied / "labels.jsonl"), "--quiet"])
    assert f"of {count} comparisons, Kendall's tau" in capsys.readouterr().out


# ---------------------------------------------------------------- settings and cost


def problem(taught: dict[str, Any], *stages: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(ConfigError) as error:
        recipe_from(taught | {"stages": list(stages), "tasks": TASKS} | changes)
    return str(error.value)


def test_settings_that_do_not_go_together_are_refused_by_name(taught: dict[str, Any]) -> None:
    assert "expected exactly one of steps and epochs" in problem(taught, MODEL | {"epochs": 1})
    smoothed = problem(taught, MODEL | {"reads": "process", "label_smoothing": 0.1})
    assert "label_smoothing: expected 0 with reads: process" in smoothed
    assert "labels: expected each file once" in problem(taught, MODEL | {"labels": ["a", "a"]})
    assert "stages.reward_model.tasks: expected above 0" in problem(taught, MODEL | {"tasks": 0})
    full = taught["model"] | {"adapter": None, "start_adapter": None}
    assert "model.adapter: expected an adapter with the stage 'reward_model'" in problem(taught, MODEL, model=full)
    stale = problem(taught, MODEL, GRPO | {"max_staleness": 1}, rubric={"reward_model": 0.2})
    assert "stages.grpo.max_staleness: expected 0 where the rubric names a reward model" in stale


def test_cost_counts_episodes_updates_and_the_reading_of_what_is_rewarded() -> None:
    machine = Machine(cores=1, memory_bytes=8 * GIB, fast_bf16=False)

    def cost(**rubric: float) -> Any:
        data = {"name": "tiny", "stages": [MODEL, GRPO | {"steps": 4}], "rubric": rubric}
        return estimate(recipe_from(data), machine).stages

    model, grpo = cost()
    assert model.episodes == 16 * 8
    assert model.trained_tokens > 0
    _, rewarded = cost(reward_model=0.2)
    assert rewarded.seconds > grpo.seconds
