from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.tasks.bands import Bands
from deedrl.tasks.experience import Experience, Ledger
from deedrl.tasks.pool import TaskPool
from deedrl.tasks.statistics import TaskStatistics
from deedrl.types import Task

FOUR = TaskStatistics(attempts=4, solved=1)
TASKS = TaskPool([Task.create(prompt=letter) for letter in "ab"])


def test_unscored_episodes_are_attempts_and_no_failures() -> None:
    seen = Experience().plus(TaskStatistics(attempts=4, solved=1, unscored=2))
    assert (seen.attempts, seen.unscored, seen.scored, seen.success_rate) == (4, 2, 2.0, 0.5)
    nothing = Experience().plus(TaskStatistics(attempts=3, unscored=3))
    assert (nothing.success_rate, nothing.interval) == (None, None)


def test_weights_halve_every_half_life_and_the_rate_moves_to_what_came_later() -> None:
    ledger = Ledger(half_life=10.0).after(0, {"a": FOUR}).after(10, {"a": TaskStatistics(attempts=4, solved=4)})
    seen = ledger.of("a", 10)
    assert (seen.solved, seen.scored) == (0.5 + 4, 2 + 4)
    assert seen.success_rate == 0.75
    assert seen.attempts == 8, "attempts do not fade"
    assert ledger.of("a", 20).success_rate == 0.75, "waiting changes the weight, not the rate"
    assert ledger.of("a", 20).scored == 3.0


def test_without_a_half_life_nothing_fades() -> None:
    assert Ledger().after(0, {"a": FOUR}).of("a", 10**6).scored == 4.0


def test_the_interval_is_wilsons_on_the_weights() -> None:
    low, high = Experience(solved=0.0, scored=10.0).interval or (None, None)
    assert low == 0.0
    assert high == pytest.approx(0.2775, abs=1e-4)
    narrow, wide = (Experience(solved=n / 2, scored=n).interval or (0.0, 0.0) for n in (20.0, 5.0))
    assert narrow[1] - narrow[0] < wide[1] - wide[0]


def test_a_step_before_what_is_known_is_a_bug_of_the_caller() -> None:
    with pytest.raises(ValueError, match="expected a step of at least 5"):
        Experience(step=5).at(4, None)


def test_a_ledger_is_not_changed_by_what_comes_after_it() -> None:
    before = Ledger()
    before.after(0, {"a": FOUR})
    assert before.entries == {}


def test_versions_tell_pools_and_what_was_seen_of_them_apart() -> None:
    seen = Ledger().after(0, {TASKS[0].id: FOUR})
    versions = {Ledger().version(TASKS), Ledger().version(TASKS[:1]), seen.version(TASKS)}
    assert len(versions) == 3
    assert seen.version(TASKS) == Ledger().after(0, {TASKS[0].id: FOUR}).version(TaskPool(reversed(TASKS)))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=8), st.floats(0.5, 100))
def test_a_rate_is_a_share_and_survives_json_exactly(rounds: list[tuple[int, int]], half_life: float) -> None:
    ledger = Ledger(half_life=half_life)
    for step, (solved, more) in enumerate(rounds):
        ledger = ledger.after(3 * step, {"a": TaskStatistics(attempts=solved + more, solved=solved)})
    seen = ledger.of("a", 100)
    assert seen.success_rate is None or 0 <= seen.success_rate <= 1
    assert msgspec.json.decode(msgspec.json.encode(seen), type=Experience) == seen


@pytest.mark.parametrize(
    ("solved", "scored", "band"),
    [
        (0, 0, "unknown"),
        (1, 1, "unknown"),
        (0, 4, "never_solved"),
        (0.05, 4, "never_solved"),
        (1, 4, "hard"),
        (0.33, 1, "unknown"),
        (33, 100, "hard"),
        (2, 4, "middle"),
        (67, 100, "easy"),
        (3, 4, "easy"),
        (4, 4, "always_solved"),
        (99, 100, "always_solved"),
    ],
)
def test_bands_by_hand(solved: float, scored: float, band: str) -> None:
    assert Bands().band(Experience(solved=float(solved), scored=float(scored))) == band
