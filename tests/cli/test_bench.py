"""The bench commands: one JSON object or one table, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deedrl.benchmarks import parser
from deedrl.benchmarks.measure import BenchmarkResult
from deedrl.cli.bench import number

Command = Callable[..., int]
TINY = {
    "runner": ("--concurrency", 6, "--threaded-concurrency", 2, "--tickets", 2, "--repetitions", 1),
    "store": ("--short-records", 3, "--long-records", 1, "--repetitions", 1),
    "parser": ("--longest", 62_500, "--calls", 1, "--repetitions", 1),
}


@pytest.fixture(autouse=True)
def few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "HOSTILE", {name: parser.HOSTILE[name] for name in ("open braces", "blanks")})


@pytest.mark.parametrize("name", TINY)
def test_json_is_one_object_on_stdout_and_nothing_is_left_behind(
    command: Command, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("bench", name, "--json", *TINY[name]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert len(shown.out.splitlines()) == 1
    plain = json.loads(shown.out)
    result = msgspec.convert(plain, BenchmarkResult)
    assert result.benchmark == name
    assert result.settings["repetitions"] == 1
    assert result.machine.cores >= 1
    assert all(one.low <= one.median <= one.high for one in result.figures)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", TINY)
def test_the_table_names_figures_targets_and_machine(
    command: Command, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    assert command("bench", name, *TINY[name]) == 0
    shown = capsys.readouterr().out
    expected = {"runner": "runner itself", "store": "short: written", "parser": "worst exponent"}[name]
    assert expected in shown
    assert "cores, CPython" in shown
    assert " met" in shown or " missed" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bench", "parser", "--longest", 10), "longest: expected at least 62500"),
        (("bench", "store", "--folder", "nowhere"), "folder: expected an existing folder"),
        (("bench", "runner", "--repetitions", 0), "--repetitions"),
        (("bench", "everything"), "everything"),
    ],
)
def test_what_cannot_be_measured_is_code_2(
    command: Command, arguments: tuple[object, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err


@pytest.mark.parametrize(
    ("value", "shown"), [(0.123, "0.12"), (9.99, "9.99"), (12.34, "12.3"), (1234.5, "1,234"), (-0.5, "-0.50")]
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(
    ("name", "options", "figure"),
    [
        (
            "rollouts",
            ("--episodes", 2, "--turns", 2, "--turns", 3, "--new-tokens", 4),
            "3 turns: sampled tokens (wall)",
        ),
        ("update", ("--tasks", 2, "--siblings", 2, "--shared-tokens", 5, "--own-tokens", 80), "update (wall)"),
    ],
)
def test_benchmarks_of_the_model_take_any_model(
    command: Command,
    name: str,
    options: tuple[object, ...],
    figure: str,
    tiny_models: Callable[[list[str]], Any],
    one_thread: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tiny_models(["You run a shop's support desk. Look up the order, then decide once."] * 9).folder(
        positions=16_384
    )
    assert command("bench", name, "--json", "--repetitions", 1, "--model", folder, *options) == 0
    result = msgspec.json.decode(capsys.readouterr().out.splitlines()[-1], type=BenchmarkResult)
    assert result.settings["model"] == str(folder)
    [found] = [one for one in result.figures if one.name == figure]
    assert found.median > 0


@pytest.mark.parametrize("name", ["rollouts", "update"])
def test_a_missing_model_is_code_2(command: Command, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("bench", name, "--model", "./nowhere") == 2
    assert "no model at './nowhere'" in capsys.readouterr().err
