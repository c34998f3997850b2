"""Scores of simple policies: measured on real environments, kept, and shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deedrl.benchmarks import scores
from deedrl.benchmarks.environments import EnvironmentsSettings, benchmark_environments
from deedrl.benchmarks.scores import keep_scores, measure_scores, overview, shipped_scores
from deedrl.cli.main import app
from deedrl.environments.loading import load_environment
from deedrl.environments.suite import ENTRY_POINTS

DESK = "deedrl/SupportDesk-v0"


def test_simple_policies_earn_what_they_deserve() -> None:
    measured = measure_scores(DESK, 14)
    found = {score.policy: score for score in measured.scores}
    assert list(found) == ["no-op", "echo", "random", "expert"]
    assert [found[name].completion for name in ("no-op", "echo", "expert")] == [0.0, 0.0, 1.0]
    assert found["no-op"].mean_progress == 0.0
    assert found["expert"].mean_progress == 1.0
    assert {score.episodes for score in measured.scores} == {14}
    assert {score.errors for score in measured.scores} == {0}
    assert found["expert"].interval == pytest.approx((0.7847, 1.0), abs=1e-4)


def test_scores_are_kept_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "SHIPPED", tmp_path / "scores.json")
    assert shipped_scores() == {}
    first, other = measure_scores(DESK, 2), measure_scores("deedrl/CustomerAnswers-v0", 2)
    keep_scores(other)
    keep_scores(first)
    assert list(shipped_scores()) == [DESK, "deedrl/CustomerAnswers-v0"]
    keep_scores(measure_scores(DESK, 3))
    assert shipped_scores()[DESK].scores[0].episodes == 3
    assert shipped_scores()["deedrl/CustomerAnswers-v0"] == other


def test_an_overview_says_what_there_is() -> None:
    found = overview(DESK, 21)
    assert found.summary.startswith("A shop's support desk")
    assert len(found.families) == 7
    assert found.splits == {"train": 21, "validation": 21, "test": 21, "test_unseen": 21}
    assert found.steps["easy"][0] == 2


@pytest.mark.parametrize("ref", ENTRY_POINTS)
def test_shipped_scores_are_those_of_a_sound_environment(ref: str) -> None:
    """Doing nothing is worth nothing, and demonstrations solve everything: also after the next change."""
    kept = shipped_scores().get(ref)
    if kept is None:
        pytest.skip("not measured")
    found = {score.policy: score for score in kept.scores}
    assert found["no-op"].completion == 0.0
    assert found["no-op"].mean_progress <= 0.05
    assert found["echo"].completion == 0.0
    assert found["expert"].completion == 1.0
    assert all(score.errors == 0 for score in kept.scores)
    assert load_environment(ref).generate_tasks("test", 1, 0)


def test_the_command_lists_what_there_is() -> None:
    shown = CliRunner().invoke(app, ["envs", "--json"])
    assert shown.exit_code == 0
    assert [row["environment"]["ref"] for row in json.loads(shown.stdout)] == list(ENTRY_POINTS)
    table = CliRunner().invoke(app, ["envs", DESK], env={"COLUMNS": "200"})
    assert "SupportDesk-v0" in table.stdout
    assert "OpsRoom" not in table.stdout


def test_an_unknown_environment_is_named_with_a_near_one() -> None:
    shown = CliRunner().invoke(app, ["envs", "deedrl/SupportDesk-v1"])
    assert "did you mean 'deedrl/SupportDesk-v0'" in str(shown.exception)


def test_the_speed_of_environments_is_measured() -> None:
    result = benchmark_environments(EnvironmentsSettings(refs=(DESK,), tasks=7, repetitions=1))
    assert [figure.name.partition(": ")[2] for figure in result.figures][:2] == ["steps in one process", "with resets"]
    assert all(figure.median > 0 for figure in result.figures)
    assert result.counts == {f"steps of {DESK}": 15}
