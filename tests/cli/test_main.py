from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., int]


def events(folder: Path) -> list[str]:
    return [json.loads(line)["event"] for line in (folder / "events.jsonl").read_text().splitlines()]


def test_run_does_all_stages_and_writes_the_report(
    command: Command, stages: Any, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("run", recipe_file, "--quiet") == 0
    assert stages.ran == ["baseline", "sft", "evaluate"]
    assert (tmp_path / "runs" / "tiny" / "report.html").exists()
    shown = capsys.readouterr().out
    assert "Completion" in shown
    assert "50.0 % (24.0–76.0)" in shown


def test_the_same_command_again_repeats_no_stage(command: Command, stages: Any, recipe_file: Path) -> None:
    command("run", recipe_file, "--out", "r", "--quiet")
    assert command("run", recipe_file, "--out", "r", "--quiet") == 0
    assert stages.ran == ["baseline", "sft", "evaluate"]


def test_overrides_reach_the_recipe(command: Command, stages: Any, recipe_file: Path, tmp_path: Path) -> None:
    assert command("run", recipe_file, "stages.sft.learning_rate=1e-5", "seed=9", "-o", "r", "-q") == 0
    saved = (tmp_path / "r" / "recipe.yaml").read_text()
    assert "learning_rate: 1e-05" in saved
    assert "seed: 9" in saved


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "none.yaml"], "no such file"),
        (["run", "tiny.yaml", "stages.sft.lerning_rate=1"], "did you mean 'learning_rate'"),
        (["run", "tiny.yaml", "--plain", "--quiet"], "at most one of"),
        (["train", "tiny.yaml"], "expected a grpo stage in the recipe"),
        (["sft"], "expected a recipe or --run"),
        (["report", "nowhere"], "expected a run folder"),
        (["export", "nowhere", "--to", "x"], "expected a run folder"),
    ],
)
@pytest.mark.usefixtures("stages", "recipe_file")
def test_user_errors_are_one_message_on_stderr_and_code_2(
    command: Command, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_unknown_options_are_code_2(command: Command) -> None:
    assert command("run", "--colour") == 2


def test_E10_a_run_with_other_settings_is_refused(
    command: Command, stages: Any, recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command("run", recipe_file, "--out", "r", "-q")
    capsys.readouterr()
    assert command("run", recipe_file, "seed=4", "--out", "r", "-q") == 2
    assert "seed: 3 (int) → 4 (int)" in capsys.readouterr().err


def test_dry_run_prints_recipe_and_cost_and_runs_nothing(
    command: Command, stages: Any, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("run", recipe_file, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "learning_rate: 0.001" in shown
    assert "time    between" in shown
    assert stages.ran == []
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_says_how_to_resume_and_keeps_what_was_finished(
    command: Command, stages: Any, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(name: str) -> None:
        if name == "sft":
            raise KeyboardInterrupt

    stages.before = interrupt
    assert command("run", recipe_file, "-o", "r", "-q") == 130
    assert "run the same command again to resume" in capsys.readouterr().err
    assert events(tmp_path / "r")[-1] == "interrupted"
    stages.before = lambda name: None
    assert command("run", recipe_file, "-o", "r", "-q") == 0
    assert stages.ran == ["baseline", "sft", "evaluate"]


def test_E12_a_full_disk_is_code_2_and_says_what_is_intact(
    command: Command, stages: Any, recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(name: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "somefile")

    stages.before = full
    assert command("run", recipe_file, "-o", "r", "-q") == 2
    assert "no space left on the disk for somefile: what was written before is intact" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.EROFS, "the file system is read-only for somefile"),
        (errno.EACCES, "permission denied for somefile"),
        (errno.EMFILE, "too many files are open for somefile"),
    ],
)
def test_what_the_machine_refuses_is_code_2_and_no_traceback(
    command: Command, stages: Any, recipe_file: Path, capsys: pytest.CaptureFixture[str], number: int, message: str
) -> None:
    def refuse(name: str) -> None:
        raise OSError(number, os.strerror(number), "somefile")

    stages.before = refuse
    assert command("run", recipe_file, "-o", "r", "-q") == 2
    assert message in capsys.readouterr().err


def test_a_file_where_a_folder_is_needed_is_code_2(
    command: Command, recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("run", recipe_file, "-o", recipe_file / "r", "-q") == 2
    assert "expected a folder and found a file" in capsys.readouterr().err


def test_a_bug_is_not_dressed_up_as_a_user_error(command: Command, stages: Any, recipe_file: Path) -> None:
    def bug(name: str) -> None:
        raise ZeroDivisionError

    stages.before = bug
    with pytest.raises(ZeroDivisionError):
        command("run", recipe_file, "-o", "r", "-q")


def test_a_stage_command_runs_its_stages_only(command: Command, stages: Any, recipe_file: Path) -> None:
    assert command("sft", recipe_file, "--run", "r", "-q") == 0
    assert stages.ran == ["sft"]
    assert command("eval", recipe_file, "--run", "r", "--stage", "evaluate", "-q") == 0
    assert stages.ran == ["sft", "evaluate"]


def test_a_stage_command_takes_the_recipe_of_the_run(command: Command, stages: Any, recipe_file: Path) -> None:
    command("sft", recipe_file, "--run", "r", "-q")
    assert command("eval", "--run", "r", "-q") == 0
    assert stages.ran == ["sft", "baseline", "evaluate"]


def test_an_adapter_to_start_from_becomes_part_of_the_recipe(
    command: Command, stages: Any, recipe_file: Path, tmp_path: Path
) -> None:
    assert command("eval", recipe_file, "--run", "r", "--adapter", "some/adapter", "-q") == 0
    assert "start_adapter: some/adapter" in (tmp_path / "r" / "recipe.yaml").read_text()


def test_json_progress_is_one_object_a_line(
    command: Command, stages: Any, recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("run", recipe_file, "-o", "r", "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines[:3]] == ["started", "progress", "ended"]
    assert lines[1]["figures"] == {"completion": 0.5}


def test_report_works_on_a_finished_run(
    command: Command, stages: Any, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command("run", recipe_file, "-o", "r", "-q")
    assert command("report", "r", "--out", "page.html") == 0
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_export_hands_over_to_the_stages(command: Command, stages: Any, recipe_file: Path, tmp_path: Path) -> None:
    command("run", recipe_file, "-o", "r", "-q")
    assert command("export", "r", "--to", "out") == 0
    assert (tmp_path / "out" / "merged-True").exists()
    assert command("export", "r", "--to", "out") == 2


def test_version_and_help(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--version") == 0
    assert "deedrl 0" in capsys.readouterr().out
    assert command("--help") == 0
    shown = capsys.readouterr().out
    assert [
        name for name in ("run", "eval", "collect", "sft", "train", "mine", "report", "export") if name not in shown
    ] == []


def test_sigterm_ends_like_ctrl_c(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom types import ModuleType\n"
        "from deedrl.cli.main import main\n"
        "stages = ModuleType('deedrl.pipeline.stages')\n"
        "def run_recipe(recipe, run, progress, *, only=None):\n    print('started', flush=True)\n    time.sleep(30)\n"
        "stages.run_recipe = run_recipe\nsys.modules['deedrl.pipeline.stages'] = stages\nmain(sys.argv[1:])\n"
    )
    (tmp_path / "tiny.yaml").write_text("name: tiny\nstages: [{stage: baseline}]\n")
    arguments = [sys.executable, "-c", code, "run", "tiny.yaml", "-o", "r", "-q"]
    with subprocess.Popen(
        arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "resume" in errors
