"""Task files: JSON lines, one task a line."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from deedrl.errors import TaskError, suggest
from deedrl.files import write_atomically
from deedrl.types import Split, Task, content_hash


def read_tasks(path: str | Path, split: Split | None = None) -> list[Task]:
    """The tasks of a JSON-lines file; blank lines are skipped.

    A line without an id gets the hash of its content. A line that is not a task, an id that is not the hash of the
    content, a task given twice and a task that is not of `split` (None: any) raise `TaskError` naming file and line;
    so does a file that cannot be read.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines()
    except OSError as error:
        raise TaskError(f"cannot read the task file {path}: {error.strerror or error}") from error
    tasks: list[Task] = []
    first_line: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        task = _read_line(line, f"{path}, line {number}")
        if split is not None and task.split != split:
            raise TaskError(
                f"{path}, line {number}: expected a task of the split '{split}', got task {task.id} of the split "
                f"'{task.split}' (a line that names none is of 'train'); change its split or name the file for "
                f"'{task.split}'"
            )
        if task.id in first_line:
            raise TaskError(
                f"{path}, line {number}: the task {task.id} stands in line {first_line[task.id]} already; "
                "remove one of them (the split is not part of a task's content)"
            )
        first_line[task.id] = number
        tasks.append(task)
    return tasks


def write_tasks(path: str | Path, tasks: Iterable[Task]) -> None:
    """Writes `tasks` so that the file is either as before or complete, never half written."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = b"".join(msgspec.json.encode(task, order="deterministic") + b"\n" for task in tasks)
    try:
        write_atomically(path, content)
    except OSError as error:
        raise TaskError(f"cannot write the task file {path}: {error.strerror or error}") from error


def _read_line(line: bytes, place: str) -> Task:
    try:
        fields: Any = msgspec.json.decode(line)
        if not isinstance(fields, dict):
            raise TaskError(f"{place}: expected a JSON object with the fields of a task, got {_shown(line)}")
        for name in sorted(fields.keys() - set(Task.__struct_fields__)):
            # A misspelt field would leave its default in its place without a word.
            raise TaskError(f"{place}: unknown field '{name}'{suggest(name, Task.__struct_fields__)}")
        task = msgspec.convert({"id": "", **fields}, Task)
        if task.shortest_steps is not None and task.shortest_steps < 1:
            raise TaskError(f"{place}: expected shortest_steps of at least 1 or null, got {task.shortest_steps}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TaskError(f"{place}: expected one task as a JSON object, got {_shown(line)}: {error}") from error
    expected = content_hash(task)
    if "id" in fields and task.id != expected:
        raise TaskError(
            f"{place}: the id '{task.id}' does not belong to this content (its hash is {expected}); "
            "leave the id out if you changed the task by hand"
        )
    return msgspec.structs.replace(task, id=expected)


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", errors="replace").strip()
    return repr(text if len(text) <= 80 else text[:77] + "...")
