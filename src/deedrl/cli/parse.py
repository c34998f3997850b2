"""``deedrl parse``: shows what the action parser makes of completions, one JSON line each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from deedrl.errors import ConfigError, EnvironmentAuthorError
from deedrl.types import FinishReason, ToolSchema

_EXIT_BAD_LINE = 2


class _Line(msgspec.Struct, frozen=True):
    """One line of input; further keys are ignored."""

    input: str
    finish_reason: FinishReason | None = "stop"


def parse(
    tools: Annotated[Path, typer.Option("--tools", help="JSON list of tools: name, description, parameters (schema).")],
    source: Annotated[
        Path | None, typer.Argument(metavar="[INPUT]", help='JSON lines {"input", "finish_reason"}; default stdin.')
    ] = None,
) -> None:
    """Parse completions given as JSON lines and print what each one is, and by which tier.

    A line that cannot be read is reported on stderr with its number; the others are still parsed, and the exit
    code is then 2.
    """
    schemas = load_tools(tools)
    failed = False
    for number, line in enumerate(_lines(source), start=1):
        if not line.strip():
            continue
        try:
            item = msgspec.json.decode(line, type=_Line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            failed = True
            expected = '{"input": "...", "finish_reason": "stop" or "length"}'
            typer.echo(f"line {number}: expected {expected}, but {error}", err=True)
            continue
        typer.echo(_result(item, schemas))
    if failed:
        raise typer.Exit(_EXIT_BAD_LINE)


def load_tools(path: Path) -> list[ToolSchema]:
    """Reads tools from a JSON file, plain or in OpenAI's ``{"type": "function", "function": ...}`` form.

    Raises `ConfigError` if the file is missing, is not a list of tools, repeats a name or holds a wrong schema.
    """
    from deedrl.parsing.schema_check import check_schema

    try:
        items = msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]])
        tools = [msgspec.convert(_plain_form(item), ToolSchema) for item in items]
        for tool in tools:
            check_schema(tool)
    except OSError as error:
        raise ConfigError(f"cannot read the tools file {path}: {error.strerror}; give an existing file") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, EnvironmentAuthorError) as error:
        raise ConfigError(
            f'{path} must hold a JSON list of {{"name", "description", "parameters"}}, but: {error}'
        ) from error
    names = [tool.name for tool in tools]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(f"{path} names tools more than once: {', '.join(repeated)}; keep one of each")
    return tools


def _plain_form(item: dict[str, Any]) -> Any:
    return item["function"] if item.get("type") == "function" and "function" in item else item


def _lines(source: Path | None) -> Iterator[bytes]:
    if source is None:
        yield from typer.get_binary_stream("stdin")
        return
    try:
        with source.open("rb") as file:
            yield from file
    except OSError as error:
        raise ConfigError(f"cannot read the input {source}: {error.strerror}; give an existing file") from error


def _result(item: _Line, tools: Iterable[ToolSchema]) -> bytes:
    from deedrl.parsing.parser import parse_action

    action = parse_action(item.input, list(tools), item.finish_reason or "stop")
    return msgspec.json.encode(
        {
            "tool_name": action.tool_name,
            "parameters": action.parameters,
            "reasoning": action.reasoning,
            "tier": action.tier,
            "repairs": action.repairs,
            "ignored_actions": action.ignored_actions,
            "error": action.error,
        }
    )
