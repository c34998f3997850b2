"""A reward model as a term of the rubric: what it rewards, and that drift is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from playing import play
from reward_models import GRPO, MODEL, TASKS, made, model_folder, opened, stored
from watching import Interruption, Watching

from deedrl.errors import ConfigError, DeedRLError
from deedrl.pipeline import learned_terms
from deedrl.pipeline.alarms import agreement_alarm, drift_alarm, keeps_falling
from deedrl.pipeline.learned_terms import learned_figures, with_learned_terms
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.run import Run
from deedrl.pipeline.stage_figures import StageFigures
from deedrl.tracking.jsonl import read_metrics
from deedrl.types import Failure, RewardBreakdown, TerminationReason, TermScore, Trajectory, Verdict


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


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


def test_G04_learned_figures_by_hand_compare_siblings_of_one_role() -> None:
    def episode(
        name: str, value: float | None, solved: bool | None, task: str = "t", role: str = "agent"
    ) -> Trajectory:
        terms = {"rm": TermScore(value=value, weight=1.0)}
        verdict = None if solved is None else Verdict(solved=solved)
        breakdown = RewardBreakdown(total=value, terms=terms)
        return Trajectory(episode_id=name, task_id=task, role=role, verdict=verdict, breakdown=breakdown)

    episodes = [
        episode("a", 0.9, True),
        episode("b", 0.4, False),
        episode("c", 0.9, False),
        episode("d", None, False),
        episode("e", 0.2, None),
        episode("f", 0.1, False, task="u"),
        episode("g", 0.3, True, role="critic"),
    ]
    figures = learned_figures(["rm"], episodes)
    assert figures["rm_mean"] == pytest.approx((0.9 + 0.4 + 0.9 + 0.2 + 0.1 + 0.3) / 6)
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
    with opened(tmp_path / "run") as (session, _):
        alarms, stop = learned_terms.drift(session, StageFigures.logged(tmp_path / "run", "grpo", len(rows)))
        assert (len(alarms), stop) == (said, over)
        early = StageFigures.logged(tmp_path / "run", "grpo", 2)
        assert learned_terms.drift(session, early) == ([], False), "later lines are not looked at"


def test_an_online_stage_ends_where_its_model_drifts(
    taught: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deedrl.pipeline.online.drift", lambda session, seen: (["it drifts"], len(seen["reward"]) == 2))
    progress = Watching()
    play(tmp_path / "run", made(taught, GRPO | {"steps": 5}, steps=2), progress)
    assert set(read_metrics(tmp_path / "run")["grpo/reward"]) == {1, 2}
    assert progress.warnings.count("grpo: it drifts") == 2
    assert any("no longer agrees with the verifier; stopping here" in text for text in progress.said)
