from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.errors import ConfigError
from deedrl.tasks.bands import BANDS, Bands
from deedrl.tasks.experience import Experience
from deedrl.tasks.filters import MAX_CHARS, NUMBERS, TEXTS, facts, parse_filter, split_by
from deedrl.tasks.statistics import TaskStatistics
from deedrl.types import Task

TASK = Task.create(prompt="p", family="window", difficulty="hard", shortest_steps=3)
SEEN = Experience().plus(TaskStatistics(attempts=5, solved=1, unscored=1))
KNOWN = facts(TASK, SEEN, Bands().band(SEEN))
UNKNOWN = facts(TASK, Experience(), "unknown")


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("success_rate < 0.5 and attempts >= 4 and family in [window, status]", True),
        ("success_rate == 0.25", True),
        ("0.1 < success_rate <= 0.25", True),
        ("0.25 < success_rate <= 0.5", False),
        ("0.5 > success_rate", True),
        ("solved < scored", True),
        ("unscored != 0", True),
        ("attempts in [4, 5]", True),
        ("attempts not in (4, 5)", False),
        ("family == window", True),
        ("'window' == family", True),
        ("family != 'window'", False),
        ("family not in [status]", True),
        ("not (difficulty == hard)", False),
        ("band == hard or band == unknown", True),
        ("success_low < 0.05 and success_high > 0.6", True),
        ("shortest_steps > -1", True),
        ("  attempts > 1  ", True),
        ("family == 'a' or family == 'b' and attempts > 0", False),
    ],
)
def test_what_holds_of_a_task_solved_once_in_four(text: str, holds: bool) -> None:
    assert parse_filter(text)(KNOWN) is holds


@pytest.mark.parametrize("comparison", ["<", "<=", ">", ">=", "==", "!=", "in", "not in"])
def test_no_comparison_with_what_was_not_measured_holds(comparison: str) -> None:
    other = "[0.5]" if "in" in comparison else "0.5"
    assert parse_filter(f"success_rate {comparison} {other}")(UNKNOWN) is False
    assert parse_filter("attempts == 0 or success_rate < 0.5")(UNKNOWN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a condition"),
        ("succes_rate < 0.5", "did you mean 'success_rate'"),
        ("success_rate < attemps", "did you mean 'attempts'"),
        ("famly in [a]", "did you mean 'family'"),
        ("band == midle", "did you mean 'middle'"),
        ("success_rate", "a comparison"),
        ("success_rate < )", "at character 16"),
        ("success_rate <", "cannot read"),
        ("success_rate < half", "expected a number or the name of a figure"),
        ("success_rate < '0.5'", "expected a number; got"),
        ("success_rate < True", "expected a number; got 'True'"),
        ("success_rate is 1", "one of <, <="),
        ("family < window", "== or != or in with 'family'"),
        ("family == 3", "a word to compare 'family' with"),
        ("family == follow-up", "in quotes unless it is plain letters"),
        ("family in window", "a list after 'in'"),
        ("family in [f(x)]", "a word to compare 'family' with"),
        ("success_rate + 1 < attempts", "expected a number; got 'success_rate + 1'"),
        ("success_rate + 1 < 2", "one side of a comparison"),
        ("2 ** 9 ** 9 > attempts", "expected a number"),
        ("__import__('os').system('true')", "a comparison"),
        ("(lambda: 1)() == attempts", "expected a number"),
        ("[a for a in attempts] == family", "a word to compare"),
        ("attempts.real > 1", "one side of a comparison"),
        ("1 < 2", "one side of a comparison"),
        ("(x := 3) < attempts", "expected a number"),
        ("attempts > 1; attempts > 2", "cannot read"),
        ("attempts > 1\0", "cannot read"),
        ("(" * 900 + "1" + ")" * 90, "cannot read"),
        ("attempts > 1 " * 100, f"at most {MAX_CHARS} characters"),
    ],
)
def test_what_is_no_condition_is_refused_with_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_filter(text)


def _terms() -> st.SearchStrategy[tuple[str, bool]]:
    """Comparisons of the known task with their truth by Python's own operators."""
    numbers = st.tuples(
        st.sampled_from([name for name in NUMBERS if KNOWN[name] is not None]),
        st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
        st.integers(-2, 7) | st.sampled_from([0.25, 0.5, 1e-3]),
    ).map(lambda term: (f"{term[0]} {term[1]} {term[2]}", _truth(KNOWN[term[0]], term[1], term[2])))
    words = st.tuples(st.sampled_from(TEXTS[:2]), st.lists(st.sampled_from(["window", "hard", "other"]))).map(
        lambda term: (f"{term[0]} in [{', '.join(term[1])}]", KNOWN[term[0]] in term[1])
    )
    return numbers | words


def _truth(left: object, comparison: str, right: float) -> bool:
    assert isinstance(left, float | int)
    return {
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
        "==": left == right,
        "!=": left != right,
    }[comparison]


_CONDITIONS = st.recursive(
    _terms(),
    lambda parts: (
        st.tuples(parts, st.sampled_from(["and", "or"]), parts).map(
            lambda x: (f"({x[0][0]} {x[1]} {x[2][0]})", x[0][1] and x[2][1] if x[1] == "and" else x[0][1] or x[2][1])
        )
        | parts.map(lambda x: (f"not {x[0]}", not x[1]))
    ),
    max_leaves=8,
)


@given(_CONDITIONS)
def test_conditions_mean_what_python_would_say(condition: tuple[str, bool]) -> None:
    text, truth = condition
    if len(text) <= MAX_CHARS:
        assert parse_filter(text)(KNOWN) is truth


@given(st.text(max_size=60) | st.text(alphabet="attempsuccr_aidnfo<>=![]()'.0123 ", max_size=60))
def test_any_text_is_a_condition_or_a_clear_error(text: str) -> None:
    try:
        condition = parse_filter(text)
    except ConfigError:
        return
    assert condition(KNOWN) in (True, False)
    assert condition(UNKNOWN) in (True, False)


def test_tasks_are_split_in_order() -> None:
    tasks = [Task.create(prompt=str(n), family="ab"[n % 2]) for n in range(4)]

    def seen(task: Task) -> dict[str, float | str | None]:
        return dict(facts(task, Experience(), BANDS[0]))

    kept, left_out = split_by(parse_filter("family == a"), tasks, seen)
    assert (kept, left_out) == ([tasks[0], tasks[2]], [tasks[1], tasks[3]])
    assert split_by(None, tasks, seen) == (tasks, [])
