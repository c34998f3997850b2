from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from deedrl.environments.checker import check_environment
from deedrl.environments.suite.data.environment import DataDesk

ROOT = Path(__file__).resolve().parents[3]


def test_the_example_solves_its_own_task(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "data_own_tasks.py"), run_name="__main__")
    assert "Verdict(solved=True, progress=1.0" in capsys.readouterr().out


def test_check_env_passes() -> None:
    report = check_environment(DataDesk)
    assert report.ok, report
