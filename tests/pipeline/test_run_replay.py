"""`deedrl replay` on run folders without a model: what is read, compared, counted and said."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deedrl.cli.main import main
from deedrl.config import dump_yaml, to_plain
from deedrl.environments.loading import load_environment
from deedrl.errors import ConfigError, DeedRLError, StoreError
from deedrl.pipeline import run_replay
from deedrl.pipeline.job import recipe_limits, recipe_rubric, task_pool
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.run_replay import Mode, RunReplay, replay_run
from deedrl.policies.scripted import RandomPolicy, ScriptedPolicy
from deedrl.reports.progress import make_progress
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.rollouts.runner import run_episodes_sync
from deedrl.seeding import derive_seed
from deedrl.store.jsonl import TrajectoryStore
from deedrl.types import Provenance

SOURCE = '''
from deedrl import Action, Environment, Task, Verdict, tool


class Till(Environment):
    """Put coins into the till until it holds what the task says."""

    blocking = False
    instructions = "Fill the till."
    max_steps = 6

    def setup(self, task):
        self.coins = self.np_random.integers(3).item()

    def state_hash(self):
        return str(self.coins)

    @tool(read_only=True)
    def count(self) -> str:
        """Counts the coins."""
        return f"{self.coins} coins"

    @tool(VERSION)
    def put(self, coins: int) -> str:
        """Puts coins in."""
        self.coins += coins
        return f"put {coins}"

    @tool(ends_episode=True)
    def close_till(self) -> str:
        """Ends the job."""
        return "closed"

    def verify(self, task):
        return Verdict(solved=self.coins == 5, progress=float(self.coins == 5))

    @classmethod
    def generate_tasks(cls, split, count, seed):
        return [
            Task.create("Fill it to 5.", initial_state={"split": split, "number": number}, split=split)
            for number in range(count)
        ]
'''
SAY = ScriptedPolicy(
    [
        "{oops",
        '{"tool_name": "count", "parameters": {}}',
        '{"tool_name": "put", "parameters": {"coins": 3}}',
        '{"tool_name": "close_till", "parameters": {}}',
    ]
)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """A run folder with `count` episodes in each of two stores; nothing but what a replay reads."""

    def make(count: int = 5, policy: Any = SAY) -> Path:
        source = tmp_path / "till.py"
        source.write_text(SOURCE.replace("VERSION", 'version="1"'))
        stages = [{"stage": "baseline"}, {"stage": "cold_start"}]
        recipe = recipe_from(
            {"name": "tiny", "seed": 4, "environment": f"{source}:Till", "stages": stages, "tasks": {"train": 50}}
        )
        folder = tmp_path / "run"
        (folder / "trajectories").mkdir(parents=True)
        (folder / "recipe.yaml").write_text(dump_yaml(to_plain(recipe)))
        cls = load_environment(recipe.environment.ref)
        for store, stage, split in (("baseline", "baseline", "test"), ("cold_start-samples", "cold_start", "train")):
            pool = list(task_pool(recipe, cls, split, 50))
            specs = [
                EpisodeSpec(
                    task=pool[number % len(pool)],
                    episode_id=f"{stage}-{number}",
                    seed=derive_seed(recipe.seed, stage, number),
                    provenance=Provenance(stage=stage),
                )
                for number in range(count)
            ]
            TrajectoryStore(folder / "trajectories" / f"{store}.jsonl").append_many(
                run_episodes_sync(
                    specs,
                    environment=cls,
                    policy=policy,
                    rubric=recipe_rubric(recipe, cls),
                    limits=recipe_limits(recipe),
                )
            )
        kept = TrajectoryStore(folder / "trajectories" / "cold-start-positives.jsonl")
        kept.append_many(TrajectoryStore(folder / "trajectories" / "cold_start-samples.jsonl"))
        return folder

    return make


def change_tool(folder: Path, old: str, new: str, version: str = "2") -> None:
    """Another file, so that it is imported anew; the recipe in the run folder points to it."""
    source = folder.parent / "till2.py"
    source.write_text(SOURCE.replace("VERSION", f'version="{version}"').replace(old, new))
    path = folder / "recipe.yaml"
    path.write_text(path.read_text().replace("till.py", "till2.py"))


def replayed(folder: Path, mode: Mode = "env", **options: Any) -> RunReplay:
    run_replay._replayer.cache_clear()
    return replay_run(folder, mode, make_progress("quiet"), **options)


@pytest.mark.parametrize("mode", ["env", "frozen", "policy"])
def test_E16_every_stored_episode_replays_and_copies_are_left_out(make_run: Callable[..., Path], mode: Mode) -> None:
    found = replayed(make_run(20), mode)
    assert sorted(found.stores) == ["baseline", "cold_start-samples"]
    assert (found.total.episodes, found.total.outcomes, found.different) == (40, {"equal": 40}, 0)


def test_E16_random_play_with_seeds_replays_in_all_three_ways(make_run: Callable[..., Path]) -> None:
    folder = make_run(30, RandomPolicy())
    for mode in ("env", "frozen", "policy"):
        assert replayed(folder, mode).total.outcomes == {"equal": 60}


@pytest.mark.parametrize("mode", ["env", "policy"])
def test_E16_a_changed_tool_is_named(make_run: Callable[..., Path], mode: Mode) -> None:
    folder = make_run()
    change_tool(folder, 'return f"put {coins}"', 'return f"put in {coins}"')
    found = replayed(folder, mode)
    assert found.different == found.total.episodes == 10
    said = found.differences[0].describe()
    assert "observation differs at step 2 (tool 'put'): recorded 'put 3', replayed 'put in 3'" in said
    assert "changed tool versions: put 1 -> 2" in said


def test_frozen_replay_needs_no_tool(make_run: Callable[..., Path]) -> None:
    folder = make_run()
    change_tool(folder, "self.coins += coins", "raise RuntimeError('the till is broken')", version="1")
    assert replayed(folder, "frozen").total.outcomes == {"equal": 10}
    assert replayed(folder, "env").differences[0].difference.what == "exception"  # type: ignore[union-attr]


def test_a_changed_rubric_is_seen_where_rewards_are_computed_again(make_run: Callable[..., Path]) -> None:
    folder = make_run()
    path = folder / "recipe.yaml"
    path.write_text(path.read_text().replace("rubric: {}", "rubric: {outcome: 0.3}"))
    assert replayed(folder, "env").different == 0
    assert replayed(folder, "policy").differences[0].difference.what == "total reward"  # type: ignore[union-attr]


def test_a_task_that_is_no_longer_made_is_a_difference(make_run: Callable[..., Path]) -> None:
    folder = make_run()
    change_tool(folder, "Fill it to 5.", "Fill it up to 5.", version="1")
    found = replayed(folder)
    assert found.different == 10
    assert "not among the tasks that the recipe gives for the split 'test'" in found.differences[0].describe()


def test_several_processes_find_what_one_finds(make_run: Callable[..., Path]) -> None:
    folder = make_run(40)
    change_tool(
        folder, 'return f"put {coins}"', 'return f"put {coins}" if self.task.initial_state["number"] % 3 else "x"'
    )
    assert replayed(folder, jobs=2) == replayed(folder, jobs=1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"stage": "cold_start"}, {"cold_start-samples": 5}),
        ({"stage": "cold-start-positives"}, {"cold-start-positives": 5}),
        ({"episode": "baseline-3"}, {"baseline": 1}),
        ({"limit": 7}, {"baseline": 5, "cold_start-samples": 2}),
    ],
)
def test_some_episodes_can_be_chosen(make_run: Callable[..., Path], options: Any, expected: dict[str, int]) -> None:
    found = replayed(make_run(), **options)
    assert {store: counts.episodes for store, counts in found.stores.items()} == expected


def test_what_is_not_there_is_said(make_run: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_run()
    with pytest.raises(ConfigError, match="neither a stage nor a store 'baselin'; did you mean 'baseline'"):
        replayed(folder, stage="baselin")
    with pytest.raises(StoreError, match="expected episode 'nobody', found none among 10 lines"):
        replayed(folder, episode="nobody")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "recipe.yaml").write_bytes((folder / "recipe.yaml").read_bytes())
    with pytest.raises(StoreError, match="expected stored episodes"):
        replayed(tmp_path / "empty")


def test_memory_does_not_grow_with_the_number_of_episodes(make_run: Callable[..., Path]) -> None:
    folder = make_run(50)
    path = folder / "trajectories" / "baseline.jsonl"
    first = path.read_text()
    replayed(folder)  # imports and tasks

    def peak(copies: int) -> int:
        path.write_text("".join(first.replace('"baseline-', f'"copy{copy}-') for copy in range(copies)))
        tracemalloc.start()
        try:
            assert replay_run(folder, "env", make_progress("quiet"), stage="baseline").total.episodes == 50 * copies
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(2), peak(12)
    assert many < few + 1_000_000


def test_a_tool_that_ends_its_process_is_named_and_nothing_hangs(make_run: Callable[..., Path]) -> None:
    folder = make_run()
    change_tool(folder, "self.coins += coins", "__import__('os')._exit(3)")
    with pytest.raises(DeedRLError, match="a process that replayed episodes ended by itself"):
        replayed(folder, jobs=2)


# ---------------------------------------------------------------- the command


def command(*arguments: object) -> int:
    run_replay._replayer.cache_clear()
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_the_command_shows_a_table_and_succeeds(make_run: Callable[..., Path], capsys: Any) -> None:
    assert command("replay", make_run(), "--quiet") == 0
    shown = capsys.readouterr().out
    assert "Replay (env)" in shown
    assert "different" in shown


def test_the_command_fails_and_shows_the_first_differences(make_run: Callable[..., Path], capsys: Any) -> None:
    folder = make_run(8)
    change_tool(folder, 'return f"put {coins}"', 'return f"put in {coins}"')
    assert command("replay", folder, "--quiet") == 1
    shown = capsys.readouterr().out
    assert shown.count("put 1 -> 2") == 10
    assert "… and 6 more" in shown


def test_the_command_gives_json(make_run: Callable[..., Path], capsys: Any) -> None:
    folder = make_run()
    change_tool(folder, 'return f"put {coins}"', 'return f"put in {coins}"')
    assert command("replay", folder, "--policy", "--json", "--limit", 3) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["mode"], found["different"], found["stores"]["baseline"]["episodes"]) == ("policy", 3, 3)
    assert "put 1 -> 2" in found["described"][0]
    assert found["differences"][0]["difference"]["tool"] == "put"


def test_two_ways_at_once_are_refused(make_run: Callable[..., Path], capsys: Any) -> None:
    assert command("replay", make_run(), "--env", "--frozen") == 2
    assert "expected one of --env, --frozen and --policy" in capsys.readouterr().err
