"""When a validation ends the stage `sft`."""

from __future__ import annotations

import msgspec
import pytest

from deedrl.evaluation.metrics import GroupMetrics, Metrics, compute_metrics, share
from deedrl.pipeline.stage_settings import Sft


def validated(*families: tuple[int, int]) -> Metrics:
    """Each family's solved episodes and all of its episodes."""
    empty = compute_metrics([])
    shares = [share([index < solved for index in range(total)]) for solved, total in families]
    of_all = share([index < solved for solved, total in families for index in range(total)])
    groups = {
        str(index): GroupMetrics(
            episodes=found.denominator,
            unscored=0,
            errored=0,
            completion_rate=found,
            mean_steps=empty.mean_steps,
            tool_use=empty.name_accuracy,
        )
        for index, found in enumerate(shares)
    }
    return msgspec.structs.replace(empty, completion_rate=of_all, by_family=groups)


def stage(**settings: float) -> Sft:
    return Sft(steps=9, validate_every=1, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("families", "ends"),
    [
        (((9, 10), (3, 10)), True),
        (((10, 10), (2, 10)), False),  # enough in all, too little in one
        (((6, 10), (5, 10)), False),  # enough in each, too little in all
        (((10, 10), (0, 0)), False),  # a family that was not scored is not one that succeeds
    ],
)
def test_a_target_counts_where_every_family_reaches_its_own(families: tuple[tuple[int, int], ...], ends: bool) -> None:
    assert stage(target_completion=0.6, target_family_completion=0.3).good_enough(validated(*families)) is ends


def test_without_a_condition_on_families_all_tasks_count_alike() -> None:
    assert stage(target_completion=0.6).good_enough(validated((10, 10), (2, 10)))


def test_without_a_target_or_a_score_the_stage_goes_on() -> None:
    assert not stage().good_enough(validated((10, 10)))
    assert not stage(target_completion=0.1).good_enough(validated())
