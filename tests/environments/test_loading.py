from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from deedrl.environments import loading
from deedrl.environments.environment import Environment
from deedrl.environments.loading import load_environment
from deedrl.errors import ConfigError, EnvironmentAuthorError

ONE = "from deedrl import Environment\nclass One(Environment):\n    pass\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before


def test_file_with_one_environment_needs_no_class_name(folder: Path) -> None:
    (folder / "one.py").write_text(ONE)
    cls = load_environment("one.py")
    assert issubclass(cls, Environment)
    assert cls.__name__ == "One"
    assert load_environment(str(folder / "one.py") + ":One") is cls


def test_file_may_import_its_neighbour(folder: Path) -> None:
    (folder / "neighbour_of_two.py").write_text("VALUE = 5\n")
    (folder / "two.py").write_text("import neighbour_of_two\n" + ONE)
    assert load_environment("two.py").__name__ == "One"


def test_module_in_the_current_folder(folder: Path) -> None:
    (folder / "module_with_one.py").write_text(ONE)
    assert load_environment("module_with_one:One").__name__ == "One"


def test_gymnasium_id(folder: Path) -> None:
    (folder / "module_registered.py").write_text(ONE)
    gymnasium.register("deedrl-test/One-v0", entry_point="module_registered:One")
    try:
        assert load_environment("deedrl-test/One-v0").__name__ == "One"
    finally:
        del gymnasium.registry["deedrl-test/One-v0"]


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("nothing", "expected an environment as .* got 'nothing'"),
        ("nowhere.py", "no file .*nowhere.py"),
        ("no_such_module:Class", "no module 'no_such_module'"),
        ("deedrl.no_such_part:Class", "no module 'deedrl.no_such_part'"),
        ("many.py", "expected exactly one environment class, found One, Two; write 'many.py:Class'"),
        ("many.py:Oen", "no class 'Oen' there; did you mean 'One'"),
        ("many.py:NUMBER", "expected a subclass of deedrl.Environment, got 3"),
        ("many.py:dict", "no class 'dict' there"),
        ("empty.py", "expected exactly one environment class, found none"),
        ("deedrl/SupportDesc-v0", "no environment is registered as 'deedrl/SupportDesc-v0'.*did you mean 'deedrl/Supp"),
        ("CartPole-v1", "expected a subclass of deedrl.Environment"),
    ],
)
def test_wrong_reference_says_what_was_expected(folder: Path, ref: str, message: str) -> None:
    (folder / "many.py").write_text(ONE + "class Two(Environment):\n    pass\nNUMBER = 3\n")
    (folder / "empty.py").write_text("from deedrl import Environment\n")
    with pytest.raises(ConfigError, match=message):
        load_environment(ref)


def test_file_that_raises_names_the_exception_and_the_place(folder: Path) -> None:
    (folder / "raising.py").write_text("x = 1\ny = x / 0\n")
    with pytest.raises(EnvironmentAuthorError, match=r"raised ZeroDivisionError: division by zero at .*raising\.py:2"):
        load_environment("raising.py")
    (folder / "importing.py").write_text("import no_such_library\n" + ONE)
    with pytest.raises(EnvironmentAuthorError, match="No module named 'no_such_library'"):
        load_environment("importing.py")
    with pytest.raises(EnvironmentAuthorError, match="No module named 'no_such_library'"):
        load_environment("importing:One")


@pytest.mark.parametrize("ref", ["exiting.py", "exiting:One"])
def test_file_that_exits_while_it_is_imported_does_not_end_the_process(folder: Path, ref: str) -> None:
    (folder / "exiting.py").write_text("import sys\nsys.exit(0)\n" + ONE)
    with pytest.raises(EnvironmentAuthorError, match=r"tried to exit the process \(code 0\) \(.*exiting\.py:2"):
        load_environment(ref)


@pytest.mark.parametrize("ref", ["endless.py", "endless:One"])
def test_file_whose_import_does_not_end_is_told_with_its_place(
    folder: Path, ref: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "IMPORT_LIMIT_S", 0.2)
    (folder / "endless.py").write_text("while True:\n    pass\n" + ONE)
    with pytest.raises(EnvironmentAuthorError, match=r"did not finish within 0\.2 s \(.*endless\.py:"):
        load_environment(ref)


def test_file_with_a_tool_that_breaks_the_contract_keeps_the_message(folder: Path) -> None:
    (folder / "untyped.py").write_text("from deedrl import tool\n@tool\ndef look(x):\n    pass\n")
    with pytest.raises(EnvironmentAuthorError, match="tool 'look', parameter 'x': expected a type hint"):
        load_environment("untyped.py")
