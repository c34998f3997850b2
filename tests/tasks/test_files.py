from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from deedrl.errors import TaskError
from deedrl.tasks.pool import TaskPool
from deedrl.types import Task

Make = Callable[..., Task]


def test_save_and_load_give_the_same_pool(tmp_path: Path, make: Make) -> None:
    pool = TaskPool([make("ä\u2028\n1", initial_state={"rows": [[1, None, "x"]]}), make("b", split="test")])
    pool.save(tmp_path / "new" / "tasks.jsonl")
    loaded = TaskPool.load(tmp_path / "new" / "tasks.jsonl")
    assert (loaded, loaded.version) == (pool, pool.version)


def test_blank_lines_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b'{"prompt": "a"}\r\n\r\n  \n{"prompt": "b"}')
    assert [task.prompt for task in TaskPool.load(path)] == ["a", "b"]


def test_a_byte_order_mark_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n')
    assert [task.prompt for task in TaskPool.load(path)] == ["a"]


def test_a_line_without_an_id_gets_its_hash(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": "a", "family": "one"}\n')
    assert TaskPool.load(path)[0].id == make("a", family="one").id


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (b"{", "expected one task as a JSON object, got '{'"),
        (b"[1, 2]", "expected a JSON object with the fields of a task, got '[1, 2]'"),
        (b"{}", "missing required field `prompt`"),
        (b'{"prompt": 3}', "Expected `str`, got `int` - at `$.prompt`"),
        (b'{"prompt": "a", "split": "dev"}', "Invalid enum value 'dev' - at `$.split`"),
        (b'{"prompt": "a", "initial_state": []}', "Expected `object`, got `array` - at `$.initial_state`"),
        (b'{"prompt": "a", "goal_state": {"x": NaN}}', "malformed"),
        (b'\xff\xfe{"prompt": "a"}', "expected one task"),
        (b'{"prompt": "a"} {"prompt": "b"}', "trailing characters"),
        (b"[" * 100_000, "expected one task"),
        (b'{"prompt": "a", "gaol_state": {}}', "unknown field 'gaol_state'; did you mean 'goal_state'?"),
        (b'{"prompt": "a", "shortest_steps": 0}', "expected shortest_steps of at least 1 or null, got 0"),
    ],
)
def test_bad_line_is_named_with_what_is_wrong(tmp_path: Path, line: bytes, part: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n\n' + line + b"\n")
    with pytest.raises(TaskError) as caught:
        TaskPool.load(path)
    assert str(caught.value).startswith(f"{path}, line 3: ")
    assert part in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 300


def test_id_that_is_not_the_hash_of_the_content_is_an_error(tmp_path: Path, make: Make) -> None:
    changed = msgspec.structs.replace(make("a"), prompt="b")
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(msgspec.json.encode(changed))
    with pytest.raises(TaskError, match=f"line 1: the id '{changed.id}' does not belong .*{make('b').id}"):
        TaskPool.load(path)


def test_F22_content_given_twice_names_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": "a", "split": split}) for split in ("train", "test")))
    with pytest.raises(TaskError, match=r"line 2: the task .* stands in line 1 already"):
        TaskPool.load(path)


def test_F22_a_task_of_another_split_is_named_with_both_splits(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "tasks.jsonl"
    stray = make("b", split="validation")
    TaskPool([make("a", split="test"), stray]).save(path)
    with pytest.raises(TaskError) as caught:
        TaskPool.load(path, "test")
    assert str(caught.value).startswith(
        f"{path}, line 2: expected a task of the split 'test', got task {stray.id} of the split 'validation'"
    )
    assert len(TaskPool.load(path)) == 2


def test_a_line_without_a_split_is_of_train(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": "a"}\n')
    assert len(TaskPool.load(path, "train")) == 1
    with pytest.raises(TaskError, match=r"line 1: expected a task of the split 'test', got .* 'train'"):
        TaskPool.load(path, "test")


def test_missing_file_is_a_task_error(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"cannot read the task file .*: No such file"):
        TaskPool.load(tmp_path / "none.jsonl")


def test_E12_failed_write_leaves_the_old_file(tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tasks.jsonl"
    TaskPool([make("old")]).save(path)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TaskError, match="No space left on device"):
        TaskPool([make("new")]).save(path)
    assert [task.prompt for task in TaskPool.load(path)] == ["old"]
    assert list(tmp_path.iterdir()) == [path]
