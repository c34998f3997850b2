"""What does not replay is not learnt from, unless a recipe allows it by name."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playing import play
from reward_models import MODEL

from deedrl.errors import ConfigError, DeedRLError
from deedrl.pipeline.context import StageContext
from deedrl.pipeline.recipe import config_hash, recipe_from
from deedrl.pipeline.replay_check import SAMPLE, Unreplayable, check_allowed, check_replays, covering_sample
from deedrl.pipeline.run import EVENTS, Run
from deedrl.pipeline.session import Session
from deedrl.reports.progress import make_progress
from deedrl.rollouts.demonstration import demonstration_policy
from deedrl.rollouts.runner import run_episodes_sync
from deedrl.tracking.tracker import Tracker
from deedrl.types import Action, Completion, Step, ToolOutput, Trajectory

SOURCE = Path(__file__).with_name("letters.py")
CLOCK, RANDOM, COUNTER = "time.time_ns()", "random.random()", "next(COUNTER)"


def written(folder: Path, expression: str, decorator: str = "@tool(ends_episode=True)") -> str:
    """A reference to `Letters` whose tool answers with `expression` too."""
    source = SOURCE.read_text().replace('return "done"', f'return f"done {{{expression}}}"')
    source = source.replace("@tool(ends_episode=True)", decorator)
    source = source.replace("import random\n", "import itertools\nimport random\nimport time\n")
    path = folder / "unsteady.py"
    path.write_text(source.replace("\n\nclass Chatter", "\nCOUNTER = itertools.count()\n\n\nclass Chatter"))
    return f"{path}:Letters"


@pytest.fixture
def open_session(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    opened: list[Run] = []

    def open_with(ref: str, *allowed: str) -> Session:
        recipe = recipe_from(
            {
                "name": "tiny",
                "environment": {"ref": ref, "allow_unreplayable": list(allowed)},
                "tasks": {"train": 16},
                "stages": [{"stage": "sft", "steps": 1}],
            }
        )
        opened.append(Run.open(tmp_path / f"run-{len(opened)}", recipe))
        return Session(StageContext(recipe, opened[-1], Tracker([]), make_progress("quiet")))

    yield open_with
    for run in opened:
        run.close()


def demonstrated(session: Session) -> list[Trajectory]:
    sampling = session.sampling()
    specs = [session.spec(task, task.id, stage="sft", sampling=sampling) for task in session.tasks("train")]
    policy = demonstration_policy(specs, session.environment_class)
    return run_episodes_sync(specs, environment=session.environment, policy=policy, rubric=None)


def checks(folder: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]
    return [event for event in events if event["event"] == "replay_check"]


def test_a_sample_of_an_environment_that_replays_is_let_through(open_session: Callable[..., Session]) -> None:
    session = open_session(f"{SOURCE}:Letters")
    check_replays(session, "sft", demonstrated(session))
    [event] = checks(session.run.folder)
    assert (event["stage"], event["episodes"], event["steps"]) == ("sft", SAMPLE, SAMPLE)
    assert (event["different"], event["problem"]) == ([], None)


@pytest.mark.parametrize("expression", [CLOCK, RANDOM, COUNTER], ids=["clock", "random", "counter"])
def test_E16_what_does_not_replay_is_refused_by_name(
    open_session: Callable[..., Session], tmp_path: Path, expression: str
) -> None:
    ref = written(tmp_path, expression, '@tool(ends_episode=True, version="1.4")')
    session = open_session(ref)
    with pytest.raises(Unreplayable) as refused:
        check_replays(session, "sft", demonstrated(session))
    said = str(refused.value)
    # A counter that starts anew may stand where it stood by chance.
    assert re.match(rf"sft: [5-8] of 8 episodes of {re.escape(ref)} do not replay", said)
    assert "first seen after a call of the tool 'choose' (version 1.4)" in said
    assert "all tool versions are the same" in said
    assert "environment.allow_unreplayable=[choose]" in said
    assert len(checks(session.run.folder)[0]["different"]) > SAMPLE // 2


def test_E16_a_tool_changed_since_the_recording_is_named_with_both_versions(
    open_session: Callable[..., Session], tmp_path: Path
) -> None:
    episodes = demonstrated(open_session(f"{SOURCE}:Letters"))
    session = open_session(written(tmp_path, "2", '@tool(ends_episode=True, version="2")'))
    with pytest.raises(Unreplayable, match="changed tool versions: choose 1 -> 2"):
        check_replays(session, "sft", episodes)


@pytest.mark.parametrize("allowed", ["choose", "ref"])
def test_what_is_allowed_by_name_is_let_through_and_recorded(
    open_session: Callable[..., Session], tmp_path: Path, allowed: str
) -> None:
    ref = written(tmp_path, CLOCK)
    name = ref if allowed == "ref" else allowed
    session = open_session(ref, name)
    check_allowed(session)
    check_replays(session, "sft", demonstrated(session))
    [event] = checks(session.run.folder)
    assert name in event["allowed"]
    assert event.get("problem") is None


def test_a_tool_declared_not_replayable_needs_to_be_allowed(
    open_session: Callable[..., Session], tmp_path: Path
) -> None:
    ref = written(tmp_path, CLOCK, "@tool(ends_episode=True, replayable=False)")
    session = open_session(ref)
    with pytest.raises(Unreplayable, match=r"calls 'choose' \(version 1\), which is declared not replayable"):
        check_replays(session, "sft", demonstrated(session))
    allowed = open_session(ref, "choose")
    check_replays(allowed, "sft", demonstrated(allowed))


def test_an_unknown_name_to_allow_is_refused(open_session: Callable[..., Session]) -> None:
    with pytest.raises(ConfigError, match=r"environment.allow_unreplayable: .* got 'chose'; did you mean 'choose'"):
        check_allowed(open_session(f"{SOURCE}:Letters", "chose"))


def test_allowing_does_not_make_it_another_run(tmp_path: Path) -> None:
    data: dict[str, Any] = {"name": "tiny", "stages": [{"stage": "baseline"}]}
    environment = {"ref": f"{SOURCE}:Letters"}
    allowing = recipe_from(data | {"environment": environment | {"allow_unreplayable": ["choose"]}})
    assert config_hash(allowing) == config_hash(recipe_from(data | {"environment": environment}))


def test_a_stage_is_checked_once(open_session: Callable[..., Session]) -> None:
    session = open_session(f"{SOURCE}:Letters")
    episodes = demonstrated(session)
    check_replays(session, "sft", episodes)
    check_replays(session, "sft", episodes)
    check_replays(session, "grpo", episodes)
    assert [event["stage"] for event in checks(session.run.folder)] == ["sft", "grpo"]


def test_episodes_without_a_call_say_nothing_and_the_next_ones_are_asked(open_session: Callable[..., Session]) -> None:
    session = open_session(f"{SOURCE}:Letters")
    silent = Trajectory(episode_id="silent", task_id=session.tasks("train")[0].id)
    check_replays(session, "grpo", [silent])
    assert checks(session.run.folder) == []
    check_replays(session, "grpo", demonstrated(session))
    assert [event["episodes"] for event in checks(session.run.folder)] == [SAMPLE]


def test_trouble_of_the_moment_is_no_difference(open_session: Callable[..., Session], tmp_path: Path) -> None:
    once = f"""self.chosen = ""
        marker = pathlib.Path({str(tmp_path / "marker")!r})
        if os.environ.get("PYTHONHASHSEED") == "random" and not marker.exists():
            marker.touch()
            raise OSError("the worker is gone")"""
    source = SOURCE.read_text().replace("import random\n", "import os\nimport pathlib\nimport random\n")
    (tmp_path / "once.py").write_text(source.replace('self.chosen = ""', once, 1))
    session = open_session(f"{tmp_path / 'once.py'}:Letters")
    check_replays(session, "sft", demonstrated(session))
    assert (tmp_path / "marker").exists()
    assert checks(session.run.folder)[0]["problem"] is None


@pytest.mark.parametrize(
    "expression",
    ["list({str(n) for n in range(50)})", "'first' if not SEEN and not SEEN.append(1) else 'again'"],
    ids=["order_of_a_set", "state_of_a_module"],
)
def test_E16_what_is_equal_in_one_process_alone_is_refused(
    open_session: Callable[..., Session], tmp_path: Path, expression: str
) -> None:
    ref = written(tmp_path, "SHOWN")
    path = Path(ref.removesuffix(":Letters"))
    source = path.read_text().replace("{SHOWN}", "{shown()}").replace("\n\nclass Chatter", SHOWN % expression)
    path.write_text(source)
    session = open_session(ref)
    episodes = demonstrated(session)
    with pytest.raises(Unreplayable, match="do not replay"):
        check_replays(session, "sft", episodes[1:])


SHOWN = """
SEEN = []


def shown():
    return %s


class Chatter"""


def test_an_environment_that_a_new_process_cannot_load_says_so(
    open_session: Callable[..., Session], tmp_path: Path
) -> None:
    source = SOURCE.read_text().replace("import random\n", "import os\nimport random\n")
    (tmp_path / "here.py").write_text(f'{source}\n\nif os.environ.get("PYTHONHASHSEED") == "random":\n    1 / 0\n')
    session = open_session(f"{tmp_path / 'here.py'}:Letters")
    with pytest.raises(DeedRLError, match=r"cannot be replayed in a process of its own: .*ZeroDivisionError"):
        check_replays(session, "sft", demonstrated(session))


def episode(name: str, *tools: str) -> Trajectory:
    steps = [
        Step(
            index=index,
            observation="",
            completion=Completion(text=""),
            action=Action(tool_name=tool),
            tool_output=ToolOutput(text=""),
        )
        for index, tool in enumerate(tools)
    ]
    return Trajectory(episode_id=name, task_id="t", steps=tuple(steps))


def test_a_sample_calls_every_tool_that_is_called() -> None:
    common = [episode(f"common-{number}", "look") for number in range(200)]
    rare = [episode("rare", "look", "refund"), episode("rarer", "look", "cancel")]
    for seed in range(5):
        sample = covering_sample([*common, *rare], 4, random.Random(seed))
        assert {"rare", "rarer"} < {trajectory.episode_id for trajectory in sample}
        assert len(sample) == 4


# ---------------------------------------------------------------- every way to learn


@pytest.fixture(scope="module")
def _one_thread(one_thread: None) -> None:
    pass


GRPO = {"stage": "grpo", "steps": 1, "tasks_per_step": 2, "group_size": 2, "validate_every": 0, "refill_attempts": 0}
WAYS: dict[str, list[dict[str, Any]]] = {
    "sft": [{"stage": "cold_start", "tasks": 0, "demonstrations": 8}, {"stage": "sft", "steps": 1}],
    "grpo": [GRPO],
    "ppo": [{"stage": "ppo", "steps": 2, "tasks_per_step": 2, "group_size": 2, "validate_every": 0}],
    "dpo": [
        {"stage": "dpo", "tasks": 16, "samples_per_task": 8, "kinds": ["outcome"], "steps": 1, "validate_every": 0}
    ],
    "reward_model": [MODEL | {"steps": 1}],
    "mine": [{"stage": "mine", "tasks": 4, "attempts": 2, "steps": 1, "band": [0.0, 1.0]}, GRPO],
}


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("way", WAYS)
def test_E16_no_stage_learns_from_what_does_not_replay(taught: dict[str, Any], tmp_path: Path, way: str) -> None:
    ref = written(tmp_path, CLOCK)
    recipe = recipe_from(taught | {"environment": ref, "stages": WAYS[way]})
    with pytest.raises(Unreplayable, match=f"{way}: .* do not replay.*'choose'"):
        play(tmp_path / "run", recipe)
    assert checks(tmp_path / "run")[0]["stage"] == way
    assert not (tmp_path / "run" / "checkpoints").exists() or not any(
        (tmp_path / "run" / "checkpoints").rglob("*.json")
    )


@pytest.mark.usefixtures("_one_thread")
def test_a_refused_run_goes_on_once_it_is_allowed(taught: dict[str, Any], tmp_path: Path) -> None:
    ref = written(tmp_path, CLOCK)
    with pytest.raises(Unreplayable):
        play(tmp_path / "run", recipe_from(taught | {"environment": ref, "stages": WAYS["sft"]}))
    allowing = {"ref": ref, "allow_unreplayable": ["choose"]}
    play(tmp_path / "run", recipe_from(taught | {"environment": allowing, "stages": WAYS["sft"]}))
    assert [event["problem"] is None for event in checks(tmp_path / "run")] == [False, True]
