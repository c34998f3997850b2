from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., int]


def test_a_plan_on_gpus_says_whether_it_fits_and_what_to_change(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--algorithm", "grpo", "--model", "some/model-7B", "--gpus", "2x24GB", "--episodes", "96")
    assert command("plan", *arguments) == 0
    shown = capsys.readouterr().out
    assert "memory of each GPU" in shown
    assert "does NOT fit" in shown
    assert "--micro-batch-tokens" in shown
    assert "data sheets, not measured" in shown


def test_json_is_one_object(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("plan", "--algorithm", "sft", "--gpus", "80GB", "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["parameters"] == 134_515_008
    assert plain["fits"] is True
    assert plain["memory_bytes"]["cache"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "3xx4"], "such as 2x24GB or 80GB, or cpu; got '3xx4'"),
        (["--model", "owner/nameless"], "cannot tell the size of the model 'owner/nameless'"),
        (["--model", "./nowhere"], "expected the config.json of a model"),
        (["--tuning", "full", "--dtype", "bf16"], "expected fp32 with --tuning full"),
        (["--rank", "9999"], "expected at most the model's hidden size of 576"),
    ],
)
def test_bad_input_is_one_message_and_code_2(
    command: Command, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("plan", "--algorithm", "grpo", *arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("arguments", [[], ["--algorithm", "reinforce"], ["--algorithm", "sft", "--episodes", "0"]])
def test_what_typer_refuses_is_code_2(command: Command, arguments: list[str]) -> None:
    assert command("plan", *arguments) == 2


def test_a_dry_run_of_a_model_without_a_size_says_why_there_is_no_estimate(
    command: Command, recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("run", recipe_file, "model=owner/nameless", "--dry-run") == 0
    assert "# no estimate: cannot tell the size" in capsys.readouterr().out


def test_a_plan_loads_no_torch() -> None:
    code = (
        "import sys\nfrom deedrl.cli.main import main\n"
        "try:\n    main(['plan', '--algorithm', 'grpo'])\nexcept SystemExit as end:\n    assert not end.code\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
