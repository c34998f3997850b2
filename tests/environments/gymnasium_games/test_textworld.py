"""TextWorld's games, where the package is installed; without it, what is said of that."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from deedrl.environments.checker import check_environment
from deedrl.environments.textworld_games import TextWorldGames
from deedrl.errors import ConfigError
from deedrl.types import Task

INSTALLED = importlib.util.find_spec("textworld") is not None
needs_textworld = pytest.mark.skipif(not INSTALLED, reason="needs the package textworld")


@pytest.fixture(scope="module")
def castle(tmp_path_factory: pytest.TempPathFactory) -> type[TextWorldGames]:
    import textworld

    folder = tmp_path_factory.mktemp("games")
    for split, seeds in {"train": (1, 2), "test": (3,)}.items():
        for seed in seeds:
            options = textworld.GameOptions()
            options.nb_rooms, options.nb_objects, options.quest_length = 2, 4, 3
            options.seeds, options.path = seed, str(folder / split / f"{seed}.z8")
            textworld.make(options)

    class Castle(TextWorldGames):
        games = folder

    return Castle


@needs_textworld
def test_generated_games_pass_check_env(castle):
    assert [result.name for result in check_environment(castle, tasks=2).results if result.ok is False] == []


@needs_textworld
def test_the_walkthrough_wins_and_a_split_is_a_folder(castle):
    assert len(castle.generate_tasks("train", 9, 0)) == 2
    (task,) = castle.generate_tasks("test", 9, 0)
    environment = castle()
    environment.reset(options={"task": task})
    *before, last = environment.demonstrate(task)
    for action in before:
        assert environment.step(action)[2] is False
    assert environment.step(last)[1:3] == (1.0, True)
    environment.close()


@needs_textworld
@pytest.mark.parametrize("command", ["", " ", "x" * 81, "go\neast", "öffne", "\x01", "save\\"])
def test_what_hangs_or_breaks_the_interpreter_is_refused(castle, command):
    environment = castle()
    environment.reset(options={"task": castle.generate_tasks("test", 1, 0)[0]})
    answer, *_, info = environment.step({"tool_name": "type_command", "parameters": {"command": command}})
    environment.close()
    assert (info["ok"], "one command of at most 80" in answer) == (False, True)


@needs_textworld
@pytest.mark.parametrize("command", ["save", "QUIT", "restore x"])
def test_commands_for_the_program_are_refused(castle, command):
    environment = castle()
    environment.reset(options={"task": castle.generate_tasks("test", 1, 0)[0]})
    answer, *_, info = environment.step({"tool_name": "type_command", "parameters": {"command": command}})
    environment.close()
    assert (info["ok"], "for the program" in answer) == (False, True)


@needs_textworld
def test_another_file_under_the_tasks_name_is_refused(castle):
    (task,) = castle.generate_tasks("test", 1, 0)
    state = {**task.initial_state, "sha256": "0"}
    with pytest.raises(ConfigError, match="is another than the task was made from"):
        castle().reset(options={"task": Task.create(task.prompt, initial_state=state)})


@pytest.mark.skipif(INSTALLED, reason="textworld is installed")
def test_without_the_package_the_message_says_how_to_get_it(tmp_path: Path):
    class Castle(TextWorldGames):
        games = tmp_path

    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.z8").write_bytes(b"game")
    with pytest.raises(ConfigError, match=r"pip install 'deedrl\[textworld\]'"):
        Castle.generate_tasks("train", 1, 0)
