"""The parse command: JSON lines in, JSON lines out, bad lines named and not fatal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from deedrl.cli.parse import parse
from deedrl.errors import ConfigError

SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
PLAIN = [{"name": "search", "description": "finds", "parameters": SCHEMA}, {"name": "get_time"}]
GOOD = json.dumps({"input": '{"tool_name":"search","parameters":{"query":"潮"}}', "finish_reason": "stop"})
CUT = json.dumps({"input": '{"tool_name":"search","parameters":{"query":"x"', "finish_reason": "length"})

app = typer.Typer()
app.command()(parse)


def run(tmp_path: Path, tools: object, lines: str | bytes, *arguments: str) -> Result:
    path = tmp_path / "tools.json"
    path.write_text(tools if isinstance(tools, str) else json.dumps(tools), "utf-8")
    return CliRunner().invoke(app, ["--tools", str(path), *arguments], input=lines)


def test_prints_what_each_line_is(tmp_path: Path) -> None:
    result = run(tmp_path, PLAIN, f"{GOOD}\n\n{CUT}\n")
    good, cut = (json.loads(line) for line in result.stdout.splitlines())
    assert result.exit_code == 0
    assert good == {
        "tool_name": "search",
        "parameters": {"query": "潮"},
        "reasoning": "",
        "tier": "strict",
        "repairs": [],
        "ignored_actions": 0,
        "error": None,
    }
    assert (cut["tier"], cut["tool_name"]) == ("reject", None)
    assert "cut off" in cut["error"]


def test_a_missing_finish_reason_is_stop(tmp_path: Path) -> None:
    lines = [
        json.dumps({"input": '{"tool_name":"search","parameters":{"query":"x"', **extra})
        for extra in ({}, {"finish_reason": None})
    ]
    result = run(tmp_path, PLAIN, "\n".join(lines))
    assert [json.loads(line)["tier"] for line in result.stdout.splitlines()] == ["repair", "repair"]


def test_reads_a_file_and_the_openai_form(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(GOOD + "\r\n", "utf-8")
    result = run(tmp_path, [{"type": "function", "function": tool} for tool in PLAIN], "", str(source))
    assert json.loads(result.stdout)["tier"] == "strict"


DEEP = '{"input": "x", "other": ' + "[" * 5000


@pytest.mark.parametrize(
    "bad", ["{", "7", '{"text": "x"}', '{"input": 7}', '{"input": "x", "finish_reason": "eos"}', b"\xff\xfe", DEEP]
)
def test_a_bad_line_is_named_and_the_others_are_parsed(bad: str | bytes, tmp_path: Path) -> None:
    middle = bad if isinstance(bad, bytes) else bad.encode()
    result = run(tmp_path, PLAIN, GOOD.encode() + b"\n" + middle + b"\n" + GOOD.encode() + b"\n")
    assert result.exit_code == 2
    assert [json.loads(line)["tier"] for line in result.stdout.splitlines()] == ["strict", "strict"]
    assert "line 2: expected" in result.stderr


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("{", "JSON list"),
        ({"name": "search"}, "JSON list"),
        ([{"description": "nameless"}], "name"),
        ('[{"name": "t", "parameters": {"a": ' + "[" * 5000, "JSON list"),
        ([{"name": "t", "parameters": {"type": "objct"}}], "schema"),
        ([{"name": "t"}, {"name": "t"}], "more than once: t"),
    ],
)
def test_a_wrong_tools_file_is_an_error(tools: object, message: str, tmp_path: Path) -> None:
    error = run(tmp_path, tools, GOOD).exception
    assert isinstance(error, ConfigError)
    assert message in str(error)


def test_missing_files_are_errors(tmp_path: Path) -> None:
    assert isinstance(CliRunner().invoke(app, ["--tools", str(tmp_path / "no.json")]).exception, ConfigError)
    assert isinstance(run(tmp_path, PLAIN, "", str(tmp_path / "no.jsonl")).exception, ConfigError)
