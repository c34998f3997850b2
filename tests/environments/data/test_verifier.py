from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from deedrl.environments.suite.data.environment import DataDesk
from deedrl.environments.suite.data.verifier import CHANGED, NO_DATA, NO_NOTE
from deedrl.types import Action, Task, Verdict

Play = Callable[[Task, Sequence[Action]], Verdict]
Act = Callable[..., Action]


def look(act: Act) -> list[Action]:
    return [
        act("note"),
        act("query", sql="SELECT sum(euros) FROM orders WHERE city = 'Bonn'"),
        act("search_log", file="shop.log", text="ERROR"),
    ]


@pytest.mark.parametrize("value", ["31.5", "31.50", "31,50 EUR", "3,150 cents", "The answer is 31.50."])
def test_the_right_value_after_the_evidence_solves(towns: Task, play: Play, act: Act, value: str) -> None:
    verdict = play(towns, [*look(act), act("answer", value=value)])
    assert (verdict.solved, verdict.progress, verdict.violations) == (True, 1.0, ())


@pytest.mark.parametrize("value", ["31.05", "31.5 or 7", "131.5", "31.5%", "31.5 km", "none", "reward: 31.5"])
def test_F01_F02_a_wrong_or_contradicting_value_earns_the_evidence_alone(
    towns: Task, play: Play, act: Act, value: str
) -> None:
    verdict = play(towns, [*look(act), act("answer", value=value)])
    assert (verdict.solved, verdict.progress) == (False, 0.3)


@pytest.mark.parametrize(
    ("missing", "violation"), [(0, NO_NOTE), (1, NO_DATA), (2, NO_DATA)], ids=["note", "query", "log"]
)
def test_F10_a_right_value_without_evidence_is_a_violation(
    towns: Task, play: Play, act: Act, missing: int, violation: str
) -> None:
    seen = [action for index, action in enumerate(look(act)) if index != missing]
    verdict = play(towns, [*seen, act("answer", value="31.5")])
    assert (verdict.solved, verdict.violations) == (False, (violation,))


def test_F16_looking_often_earns_no_more(towns: Task, play: Play, act: Act) -> None:
    assert play(towns, look(act) * 3).progress == play(towns, look(act)).progress == 0.3


def test_F15_doing_nothing_earns_nothing(towns: Task, play: Play) -> None:
    assert play(towns, []) == Verdict(
        solved=False, progress=0.0, milestones={"read_data": False, "read_note": False, "right_answer": False}
    )


def test_a_refused_query_is_no_evidence(towns: Task, play: Play, act: Act) -> None:
    wrong = act("query", sql="SELECT city, euros FROM orders WHERE")
    assert play(towns, [wrong]).milestones["read_data"] is False


def test_F13_data_changed_behind_the_desk_is_a_violation(desk: DataDesk, towns: Task, act: Act) -> None:
    desk.reset(options={"task": towns})
    for action in look(act):
        desk.step(action)
    desk.source._path.write_bytes(b"")
    desk.step(act("answer", value="31.5"))
    assert (desk.current_verdict().solved, desk.current_verdict().violations) == (False, (CHANGED,))


def test_all_fixtures_get_their_verdict(play: Play) -> None:
    for task in DataDesk.generate_tasks("train", 63, seed=1):
        fixtures = DataDesk.fixtures(task)
        assert len(fixtures) >= 12
        for fixture in fixtures:
            assert fixture.complaint(play(task, fixture.actions)) is None, (task.prompt, fixture.name)
