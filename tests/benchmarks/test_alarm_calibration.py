"""Alarms on the figures of real runs, and on failures planted in tiny ones: `benchmarks/alarm_calibration.py`."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "alarm_calibration.py"
RUNS = sorted((ROOT / "tests" / "pipeline" / "real_runs").glob("*.jsonl"))


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("alarm_calibration", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["alarm_calibration"] = module
    spec.loader.exec_module(module)
    return module


def runs_that(script, outcome):
    found = [script.RealRun.read(file) for file in RUNS]
    return [run for run in found if run.about["outcome"] == outcome]


def test_no_alarm_on_healthy_real_runs(script):
    healthy = runs_that(script, "healthy")
    assert len(healthy) >= 8
    assert {run.about["run"]: run.replayed() for run in healthy} == {run.about["run"]: [] for run in healthy}
    for run in healthy:
        validations = run.series()["validation_completion"]
        assert validations[-1] - validations[0] > 0.04, "what makes them healthy"


def test_an_alarm_on_the_real_failures(script):
    said = {run.about["run"]: script.by_name(run.replayed()) for run in runs_that(script, "failed")}
    assert said == {"desk-21": {"reward fell": [4]}, "desk-22": {"reward fell": [2]}}


@pytest.mark.parametrize(
    ("figure", "at", "value", "alarm"),
    [
        ("entropy", 9, 1e-4, "entropy fell"),
        ("entropy", 9, 0.5, "entropy rose"),
        ("kl", 9, 1.0, "divergence"),
        ("ratio_outside", 9, 0.5, "ratios"),
        ("grad_norm", 9, 5.0, "gradient"),
        ("skipped_update", 9, 1, "skipped update"),
        ("logprob_gap", 9, 0.5, "sampler"),
        ("reward", 9, 0.2, "reward fell"),
    ],
)
def test_one_wrong_figure_in_a_real_run_raises_its_alarm(script, figure, at, value, alarm):
    [run] = [run for run in runs_that(script, "healthy") if run.about["run"] == "desk-13"]
    # A divergence is to last.
    since = at - 1 if figure == "kl" else at
    lines = [line | {figure: value} if since <= line["step"] <= at and figure in line else line for line in run.lines]
    # Validations would contradict a fall of the reward.
    lines = [line for line in lines if alarm != "reward fell" or "validation_completion" not in line]
    assert script.by_name(script.RealRun(run.about, lines).replayed()) == {alarm: [at]}


def test_what_is_kept_of_real_runs_names_no_machine():
    for file in RUNS:
        text = file.read_text(encoding="utf-8")
        assert len(text) < 10_000
        assert '"/' not in text
        assert "tmp" not in text


def test_the_command_tells_a_planted_failure_from_a_healthy_run(script, tmp_path, capsys):
    file = tmp_path / "found.json"
    script.main(["--seeds", "1", "--only", "scale of rewards", "healthy", "--json", str(file)])
    found = {outcome["run"]: outcome for outcome in json.loads(file.read_text())}
    assert found["healthy, seed 0"]["said"] == {}
    assert found["scale of rewards, seed 0"]["said"]["gradient"][0] == 8
    assert {run.stem for run in RUNS} <= set(found)
    assert "| scale of rewards, seed 0 | rewards times 100 | gradient | gradient at 8" in capsys.readouterr().out
