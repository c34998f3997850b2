from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.tasks.bands import BANDS, BandName
from deedrl.tasks.choosing import (
    FRONTIER,
    FRONTIER_FALLBACK,
    LEFT_OUT,
    OFTEN_SOLVED,
    QUOTA_FALLBACK,
    Choice,
    frontier_offer,
    quota_offer,
    uniform_choice,
)
from deedrl.tasks.quotas import draw_in_turn
from deedrl.types import Task

THIRDS: dict[BandName, float] = {"easy": 1.0, "middle": 1.0, "hard": 1.0}


def pool(**sizes: int) -> dict[BandName, list[Task]]:
    return {band: [Task.create(prompt=f"{band} {n}") for n in range(sizes.get(band, 0))] for band in BANDS}


def groups_of(choices: Sequence[Choice]) -> Counter[tuple[str, str]]:
    return Counter((choice.wanted, choice.group) for choice in choices)


def test_every_batch_holds_the_shares() -> None:
    offer = quota_offer(pool(easy=9, middle=9, hard=9, always_solved=50), [], THIRDS)
    chosen = offer.choose([6, 6, 6], random.Random(0))
    for start in (0, 6, 12):
        assert groups_of(chosen[start : start + 6]) == {(band, band): 2 for band in THIRDS}


def test_what_rounding_leaves_open_chance_decides() -> None:
    offer = quota_offer(pool(easy=9, middle=9, hard=9), [], THIRDS)
    fewer = Counter(
        min(THIRDS, key=lambda band: groups_of(chosen)[band, band])
        for seed in range(300)
        for chosen in [offer.choose([8], random.Random(seed))]
    )
    assert all(70 < fewer[band] < 130 for band in THIRDS), "each third is the smaller one a third of the time"


def test_a_band_that_runs_out_is_filled_and_every_stand_in_is_told() -> None:
    chosen = quota_offer(pool(easy=2, middle=8, unknown=1, never_solved=9), [], THIRDS).choose([9], random.Random(0))
    counts = groups_of(chosen)
    assert counts["easy", "easy"] == 2
    assert counts["middle", "middle"] == 3
    # One unknown task, for one of the two bands that lack some; then what teaches, before what cannot.
    assert sum(n for (_, group), n in counts.items() if group == "unknown") == 1
    assert sum(n for (wanted, group), n in counts.items() if group == "middle" and wanted != "middle") == 3
    assert sum(choice.fell_back for choice in chosen) == 4


def test_a_band_keeps_its_own_places_before_it_stands_in() -> None:
    chosen = quota_offer(pool(easy=2, hard=9), [], {"middle": 1.0, "easy": 1.0}).choose([4], random.Random(0))
    assert groups_of(chosen) == {("easy", "easy"): 2, ("middle", "hard"): 2}


def test_what_a_filter_leaves_out_comes_last() -> None:
    others = [Task.create(prompt=f"other {n}") for n in range(9)]
    chosen = quota_offer(pool(always_solved=1), others, {"easy": 1.0}).choose([3], random.Random(0))
    assert groups_of(chosen) == {("easy", "always_solved"): 1, ("easy", LEFT_OUT): 2}


@given(st.fixed_dictionaries({band: st.integers(0, 5) for band in BANDS}), st.lists(st.integers(1, 7), max_size=3))
def test_tasks_are_distinct_and_fewer_only_where_there_are_fewer(sizes: dict[str, int], batches: list[int]) -> None:
    chosen = quota_offer(pool(**sizes), [], THIRDS).choose(batches, random.Random(1))
    assert len({choice.task.id for choice in chosen}) == len(chosen) == min(sum(batches), sum(sizes.values()))


def test_the_frontier_is_what_is_solved_sometimes_but_not_often() -> None:
    by_band = pool(hard=4, middle=4, easy=4, never_solved=4, always_solved=4, unknown=4)
    rates = {
        task.id: {"hard": 0.2, "middle": 0.5, "easy": 0.8}.get(band, 0.0) for band in BANDS for task in by_band[band]
    }
    offer = frontier_offer(by_band, rates, [], up_to=0.5, explore_share=0.25)
    chosen = offer.choose([8], random.Random(0))
    assert groups_of(chosen) == {(FRONTIER, FRONTIER): 6, ("unknown", "unknown"): 2}
    assert {choice.task.prompt.split()[0] for choice in chosen if choice.group == FRONTIER} <= {"hard", "middle"}
    everything = offer.choose([24], random.Random(0))
    assert Counter(choice.group for choice in everything) == {
        FRONTIER: 8,
        "unknown": 4,
        OFTEN_SOLVED: 4,
        "never_solved": 4,
        "always_solved": 4,
    }


def test_without_unknown_tasks_the_frontier_takes_their_places() -> None:
    by_band = pool(hard=9)
    offer = frontier_offer(by_band, {task.id: 0.2 for task in by_band["hard"]}, [], up_to=0.5, explore_share=0.5)
    assert groups_of(offer.choose([4], random.Random(0))) == {(FRONTIER, FRONTIER): 2, ("unknown", FRONTIER): 2}


@pytest.mark.parametrize("table", [QUOTA_FALLBACK, FRONTIER_FALLBACK])
def test_every_group_stands_in_for_every_other(table: dict[str, tuple[str, ...]]) -> None:
    names = (
        set(BANDS) if table is QUOTA_FALLBACK else {FRONTIER, OFTEN_SOLVED, "unknown", "never_solved", "always_solved"}
    )
    for name, others in table.items():
        assert len(others) == len(set(others))
        assert {name, *others} == names


def test_uniform_draws_as_without_a_curriculum() -> None:
    tasks = [Task.create(prompt=str(n), family="ab"[n % 2]) for n in range(20)]
    chosen = uniform_choice(tasks, [], 8, random.Random(3), {"a": 2.0})
    assert [choice.task for choice in chosen] == draw_in_turn(tasks, 8, random.Random(3), {"a": 2.0})
    short = uniform_choice(tasks[:2], tasks[2:], 8, random.Random(3), {})
    assert [choice.group for choice in short] == ["any"] * 2 + [LEFT_OUT] * 6
