"""Estimates beside times that were measured: a factor of 1.5 either way is what a dry run promises."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from deedrl.pipeline.cost import Estimate, estimate
from deedrl.pipeline.recipe import load_recipe
from deedrl.planning.machine import GIB, MEASURED_RANGE, Machine, throughput
from deedrl.planning.shape import EMBEDDED

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
XEON = Machine(cores=2, memory_bytes=23 * GIB, fast_bf16=True)
"""With AMX."""
EPYC = Machine(cores=2, memory_bytes=16 * GIB, fast_bf16=False)
"""With AVX2."""
AS_IT_WAS = ("stages.dpo.validate_every=5",)
MEASURED = [
    # Seconds of stages on the Xeon. The quickstart, seed 7, 2026-12-01, nothing beside it.
    ("quickstart", (), "baseline", 20.3),
    ("quickstart", (), "cold_start", 17.1),
    ("quickstart", (), "sft", 143.0),
    ("quickstart", (), "after_cold_start", 14.2),
    ("quickstart", (), "grpo", 685.8),
    ("quickstart", (), "after_grpo", 13.6),
    ("quickstart", (), "mine", 64.1),
    ("quickstart", (), "evaluate", 22.7),
    # docs/alignment.md, 2026-12-01.
    ("align-tone", (), "baseline", 12.6),
    ("align-tone", (), "sft", 57.6),
    ("align-tone", (), "after_cold_start", 3.9),
    ("align-tone", (), "dpo", 119.1),
    ("align-tone", (), "evaluate", 7.3),
    # docs/dpo.md, 2026-12-01.
    ("support-dpo", AS_IT_WAS, "dpo", 221.4),
    ("support-dpo", AS_IT_WAS, "evaluate", 20.7),
    # docs/reward-model.md, 2026-12-01.
    (
        "support-reward-model",
        ("tasks.validation=42", "stages.grpo.validation_tasks=42", "stages.grpo.steps=4"),
        "grpo",
        207.7,
    ),
    ("support-reward-model", (), "reward_model", 77.3),
    ("support-reward-model", (), "evaluate", 13.7),
]


def priced(recipe: str, overrides: Sequence[str] = (), machine: Machine = XEON) -> Estimate:
    return estimate(load_recipe(RECIPES / f"{recipe}.yaml", overrides), machine)


@pytest.mark.parametrize(("recipe", "overrides", "stage", "seconds"), MEASURED)
def test_a_stage_takes_about_what_was_measured(
    recipe: str, overrides: tuple[str, ...], stage: str, seconds: float
) -> None:
    cost = priced(recipe, overrides)
    assert cost.factor == MEASURED_RANGE
    [found] = [one.seconds for one in cost.stages if one.name == stage]
    assert seconds / MEASURED_RANGE < found < seconds * MEASURED_RANGE


def test_the_quickstart_as_a_whole_is_closer() -> None:
    measured = sum(seconds for recipe, _, _, seconds in MEASURED if recipe == "quickstart")
    assert priced("quickstart").seconds == pytest.approx(measured, rel=0.15)


# docs/performance.md: 64 episodes of 4 turns of 32 tokens, 11,000 tokens read; an update of 8 tasks x 8 siblings, of
# which 10,900 tokens are computed. 2026-11-30 and 2026-12-01.
@pytest.mark.parametrize(("machine", "rollouts", "update"), [(XEON, 10.1, 20.0), (EPYC, 95.0, 89.3)])
def test_throughputs_are_those_of_the_benchmarks(machine: Machine, rollouts: float, update: float) -> None:
    speed = throughput(machine, bf16=machine.fast_bf16)
    played = speed.sampling(EMBEDDED.parameters, sampled=64 * 4 * 32, read=11_000, passes=4 * 32)
    learnt = speed.training(EMBEDDED.parameters, tokens=10_900, operations=4, micro_batch_tokens=4096)
    assert played == pytest.approx(rollouts, rel=0.2)
    assert learnt == pytest.approx(update, rel=0.2)
