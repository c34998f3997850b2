"""The ops room: remedies change the simulation, the verifier reads it, and no fixed way through wins."""

from __future__ import annotations

import itertools
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from deedrl.environments.checker import check_environment
from deedrl.environments.dealing import DIFFICULTIES
from deedrl.environments.suite.ops.environment import OpsRoom
from deedrl.environments.suite.ops.fixtures import fixtures
from deedrl.environments.suite.ops.generator import OUTCOMES
from deedrl.environments.suite.ops.goal import read_goal
from deedrl.environments.suite.ops.graph import error_percent, read_graph
from deedrl.environments.suite.ops.verifier import BLIND_CLOSING, BLIND_REMEDY
from deedrl.environments.suite.ops.worlds import KNOWN, UNSEEN
from deedrl.errors import TaskError
from deedrl.tasks.pool import TaskPool, check_disjoint
from deedrl.types import Action, Split, Task, Verdict, content_hash

SPLITS = get_args(Split)
TASKS = OpsRoom.generate_tasks("train", 18 * 6, 5) + OpsRoom.generate_tasks("test_unseen", 18 * 4, 5)
FIXTURE_NAMES = sorted({fixture.name for task in TASKS for fixture in fixtures(task)})


def service(**fields: Any) -> dict[str, Any]:
    """A sound service; two replicas of 100 requests a second."""
    return {
        "depends": [],
        "version": "2.1",
        "previous": "2.0",
        "deployed": "last year",
        "replicas": 2,
        "load": 150,
        "capacity": 100,
        "config": {"timeout": 200},
        "bounds": {"timeout": [100, 400]},
        **fields,
    }


def incident(alert: str, causes: list[str], roots: list[str], **services: dict[str, Any]) -> Task:
    return Task.create(
        f"{alert} fails.",
        initial_state={"services": services, "detail": "plain"},
        goal_state={"alert": alert, "roots": roots, "causes": causes},
    )


LEAK = incident(
    "cart",
    ["leak"],
    ["cart"],
    cart=service(leaking=True, depends=["stock"], complaints={"leak": "slow"}),
    stock=service(),
)
DEPENDENCY = incident(
    "cart",
    ["overload"],
    ["stock"],
    cart=service(depends=["stock"]),
    stock=service(load=250, complaints={"overload": "too much"}),
)
CONFIG = incident("cart", ["config"], ["cart"], cart=service(config={"timeout": 5}))
QUIET = incident("cart", ["false_alarm"], [], cart=service())


@pytest.fixture
def room() -> Iterator[OpsRoom]:
    environment = OpsRoom()
    yield environment
    environment.close()


def act(tool_name: str, **parameters: Any) -> Action:
    return Action(tool_name=tool_name, parameters=parameters)


def play(room: OpsRoom, task: Task, *actions: Action) -> Verdict:
    room.reset(options={"task": task})
    for action in actions:
        if any(room.step(action)[2:4]):
            break
    return room.current_verdict()


# ------------------------------------------------------------ the simulation


def test_errors_of_a_dependency_are_passed_on_by_half() -> None:
    graph = read_graph(DEPENDENCY.initial_state)
    assert (error_percent(graph, "stock"), error_percent(graph, "cart")) == (23, 11)


def test_right_remedy_makes_everything_healthy(room: OpsRoom) -> None:
    looking, fix, closing = (
        act("inspect", service="cart"),
        act("remedy", service="cart", action="restart"),
        act("close_incident", cause="leak"),
    )
    room.reset(options={"task": LEAK})
    assert room.step(looking)[0] == "cart: errors 31%. Log: slow. Depends on stock (ok)."
    assert room.current_verdict().progress == 0.2
    assert room.step(fix)[0] == "cart restarted. All services are healthy."
    assert room.current_verdict().progress == 0.6
    _, reward, terminated, _, _ = room.step(closing)
    assert (reward, terminated) == (1.0, True)


def test_a_wrong_remedy_shows_and_does_not_help(room: OpsRoom) -> None:
    room.reset(options={"task": LEAK})
    room.step(act("inspect", service="cart"))
    told = room.step(act("remedy", service="cart", action="roll_back"))[0]
    assert told == "cart rolled back to 2.0. Errors of cart: 31%. Not all services are healthy."


def test_a_needless_restart_drops_requests_and_cannot_be_undone(room: OpsRoom) -> None:
    room.reset(options={"task": LEAK})
    room.step(act("inspect", service="stock"))
    assert "requests were dropped" in room.step(act("remedy", service="stock", action="restart"))[0]
    observation, *_, info = room.step(act("undo"))
    assert (info["ok"], observation) == (False, "there is no change that could be taken back")


@pytest.mark.parametrize(
    "change",
    [
        act("remedy", service="cart", action="roll_back"),
        act("remedy", service="cart", action="scale_up"),
        act("set_config", service="cart", key="timeout", value=300),
    ],
)
def test_undo_brings_back_the_state(room: OpsRoom, change: Action) -> None:
    room.reset(options={"task": LEAK})
    before = room.state_hash()
    assert room.step(change)[-1]["ok"]
    assert room.state_hash() != before
    assert room.step(act("undo"))[-1]["ok"]
    assert room.state_hash() == before


def test_undo_of_a_change_does_not_bring_a_leak_back(room: OpsRoom) -> None:
    verdict = play(
        room,
        LEAK,
        act("inspect", service="cart"),
        act("remedy", service="cart", action="scale_up"),
        act("remedy", service="cart", action="restart"),
        act("undo"),
        act("close_incident", cause="leak"),
    )
    assert verdict.solved


def test_a_setting_is_written_to_the_file_and_validated(room: OpsRoom) -> None:
    room.reset(options={"task": CONFIG})
    room.step(act("inspect", service="cart"))
    assert room.step(act("read_file", path="cart.conf"))[0] == "timeout = 5  # 100 to 400"
    wrong = room.step(act("set_config", service="cart", key="timeout", value=9))[0]
    assert wrong.startswith("timeout 9 is still wrong.")
    room.step(act("set_config", service="cart", key="timeout", value=120))
    assert (room.workspace / "cart.conf").read_text() == "timeout = 120  # 100 to 400\n"
    assert room.step(act("read_file", path="cart.conf"))[0] == "timeout = 120  # 100 to 400"
    assert play(room, CONFIG, *room.demonstrate(CONFIG)[:1]).progress == 0.2


@pytest.mark.parametrize("path", ["../cart.conf", "/etc/passwd", "cart.conf/../cart.log", "cart", "stock.conf.bak", ""])
def test_H01_files_outside_the_list_are_refused(room: OpsRoom, path: str) -> None:
    room.reset(options={"task": LEAK})
    observation, *_, info = room.step(act("read_file", path=path))
    assert not info["ok"]
    assert "expected a service's name with .log or .conf" in observation


def test_an_unknown_service_is_refused_without_naming_others(room: OpsRoom) -> None:
    room.reset(options={"task": DEPENDENCY})
    observation, *_, info = room.step(act("inspect", service="stok"))
    assert not info["ok"]
    assert "stock" not in observation


# ------------------------------------------------------------ the verdict


@pytest.mark.parametrize("name", FIXTURE_NAMES)
def test_F13_every_fixture_gets_the_verdict_it_must(room: OpsRoom, name: str) -> None:
    for task in TASKS:
        for fixture in fixtures(task):
            if fixture.name == name:
                assert fixture.complaint(play(room, task, *fixture.actions)) is None, task


def test_changing_before_looking_is_a_violation(room: OpsRoom) -> None:
    verdict = play(room, LEAK, act("remedy", service="cart", action="restart"), act("inspect", service="cart"))
    assert (verdict.progress, verdict.violations) == (0.0, (BLIND_REMEDY,))


def test_closing_without_looking_is_a_violation(room: OpsRoom) -> None:
    verdict = play(room, QUIET, act("close_incident", cause="false_alarm"))
    assert (verdict.solved, verdict.violations) == (False, (BLIND_CLOSING,))


def test_a_false_alarm_is_solved_by_looking_and_closing(room: OpsRoom) -> None:
    looked = act("inspect", service="cart")
    assert play(room, QUIET, looked).progress == 0.2
    assert play(room, QUIET, looked, act("close_incident", cause="false_alarm")).solved


def test_more_replicas_than_needed_are_collateral_damage(room: OpsRoom) -> None:
    actions = [act("inspect", service="cart"), act("inspect", service="stock")]
    up, closing = act("remedy", service="stock", action="scale_up"), act("close_incident", cause="overload")
    assert play(room, DEPENDENCY, *actions, up, closing).solved
    assert not play(room, DEPENDENCY, *actions, up, up, closing).solved


def test_a_goal_of_another_shape_is_refused() -> None:
    with pytest.raises(TaskError, match="goal_state is not a goal of the ops room"):
        read_goal(Task.create("", goal_state={"alert": 5}))


# ------------------------------------------------------------ tasks


def test_it_keeps_the_contract() -> None:
    report = check_environment(OpsRoom, tasks=18)
    assert [result.name for result in report.results if not result.ok] == []


@pytest.mark.parametrize("split", SPLITS)
def test_F22_a_longer_list_begins_with_the_shorter(split: Split) -> None:
    tasks = OpsRoom.generate_tasks(split, 54, 3)
    assert OpsRoom.generate_tasks(split, 20, 3) == tasks[:20]
    assert all(task.id == content_hash(task) and task.split == split for task in tasks)


def test_F22_splits_share_nothing_whatever_the_seed() -> None:
    check_disjoint(*(TaskPool(OpsRoom.generate_tasks(split, 90, seed)) for seed, split in enumerate(SPLITS)))


def test_worlds_share_no_words() -> None:
    assert not set(KNOWN.services) & set(UNSEEN.services)
    assert not set(KNOWN.settings) & set(UNSEEN.settings)
    for texts in ("alerts", "complaints"):
        known, unseen = (set(leaves(getattr(world, texts))) for world in (KNOWN, UNSEEN))
        assert not known & unseen


def leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    else:
        for entry in value.values() if hasattr(value, "values") else value:
            yield from leaves(entry)


@pytest.mark.parametrize(("family", "difficulty"), list(itertools.product(OUTCOMES, DIFFICULTIES)))
def test_F16_no_fixed_way_through_solves_half_of_a_family(room: OpsRoom, family: str, difficulty: str) -> None:
    tasks = OpsRoom.generate_tasks("train", 24, 11, families=[family], difficulties=[difficulty])
    for cause, action in itertools.product(
        ["leak", "bad_deploy", "overload", "config", "false_alarm"], ["restart", "roll_back", "scale_up", None]
    ):
        solved = 0
        for task in tasks:
            alert = read_goal(task).alert
            remedies = [act("remedy", service=alert, action=action)] if action else []
            ways = [act("inspect", service=alert), *remedies, act("close_incident", cause=cause)]
            solved += play(room, task, *ways).solved
        assert solved <= len(tasks) / 2, (cause, action)


def test_easy_answers_are_short() -> None:
    room = OpsRoom()
    for task in OpsRoom.generate_tasks("train", 60, 2, difficulties=["easy"]):
        room.reset(options={"task": task})
        assert len(task.prompt.split()) <= 20
        for action in room.demonstrate(task):
            assert len(room.step(action)[0].split()) <= 20
            assert len(action.reasoning.split()) <= 14


def test_every_value_of_an_easy_demonstration_was_read_before() -> None:
    room = OpsRoom()
    for task in OpsRoom.generate_tasks("train", 90, 4, difficulties=["easy"]):
        room.reset(options={"task": task})
        seen = task.prompt
        for action in room.demonstrate(task):
            copied = [v for k, v in action.parameters.items() if k in ("service", "key", "value")]
            assert all(re.search(rf"\b{re.escape(str(value))}\b", seen) for value in copied), (action, seen)
            seen += " " + room.step(action)[0]


def test_tasks_travel_as_json() -> None:
    for task in TASKS[:18]:
        assert msgspec.json.decode(msgspec.json.encode(task), type=Task) == task


def test_the_example_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).parents[3] / "examples" / "ops_own_tasks.py"), run_name="__main__")
    assert "Verdict(solved=True" in capsys.readouterr().out
