"""What a recipe will cost here, in time and memory: a simple model with its constants in sight.

Time is floating-point work divided by a throughput. A forward pass costs 2 operations per parameter and token, a
training pass 4 with frozen base weights (no weight gradients) and 6 without (Kaplan et al. 2020, section 2.1).
Throughputs were measured where `deedrl.planning.machine` says so and guessed from data sheets elsewhere; the answer is
a range. Memory is that of `deedrl plan` (`deedrl.planning.memory`), of the stage that takes most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from deedrl.config import Settings
from deedrl.pipeline.pair_settings import PairSettings
from deedrl.pipeline.ppo_settings import Ppo
from deedrl.pipeline.recipe import (
    AnyStage,
    Baseline,
    ColdStart,
    Dpo,
    Evaluate,
    Grpo,
    Mine,
    Recipe,
    Sft,
)
from deedrl.pipeline.stage_base import OnlineSettings
from deedrl.planning.load import OBSERVATION_TOKENS, PREFIX_TOKENS, TASK_TOKENS, TURN_TOKENS, TURNS, Load
from deedrl.planning.machine import GIB, HIGH, LOW, Machine, Throughput, span, throughput
from deedrl.planning.memory import Memory, MemorySettings, memory
from deedrl.planning.plan import DATA_SHEETS
from deedrl.planning.shape import ModelShape, model_shape

Learns = Sft | OnlineSettings | PairSettings
"""Stages that take optimiser steps by settings of their own."""

POSITIVE_SHARE = 0.4
"""Share of sampled trajectories a cold start typically keeps."""
PAIRS_PER_EPISODE = 0.5
"""Preference pairs that are typically left of each episode played in training."""


class StageCost(Settings, frozen=True, kw_only=True):
    """One stage's share."""

    name: str
    episodes: int
    sampled_tokens: float
    trained_tokens: float
    seconds: float


class Estimate(Settings, frozen=True, kw_only=True):
    """Cost of a recipe; seconds are the middle of the range [LOW, HIGH] times."""

    stages: tuple[StageCost, ...]
    model: ModelShape
    dtype: str
    memory: Memory
    """Of the stage that takes most; of each GPU, if there are any."""
    trains: bool
    available_bytes: float
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def memory_bytes(self) -> float:
        """The most at one time."""
        return self.memory.peak if self.trains else self.memory.sampling_alone

    @property
    def fits(self) -> bool:
        return self.memory_bytes < self.available_bytes


# ---------------------------------------------------------------- what it takes


def estimate(recipe: Recipe, machine: Machine) -> Estimate:
    """Time and memory of `recipe` on `machine`; see the top of this file for the model.

    Raises ModelError where the size of the recipe's model cannot be told.
    """
    shape = model_shape(recipe.model.path)
    bf16 = recipe.model.dtype == "bf16" or (recipe.model.dtype == "auto" and bool(machine.gpus or machine.fast_bf16))
    speed = throughput(machine, bf16)
    stages = tuple(_stage_cost(recipe, stage, shape, speed) for stage in recipe.stages)
    training = _training(recipe)
    # Without training only the parts of sampling count, which are the same for all stages.
    parts = [memory(shape, _memory_settings(recipe, stage, machine, bf16)) for stage in training or [Grpo()]]
    notes = [] if shape.known else [f"size of {recipe.model.path} guessed from its name"]
    if machine.gpus:
        notes.append(DATA_SHEETS)
    if len(machine.gpus) > 1:
        notes.append(f"one process a GPU: torchrun --nproc_per_node {len(machine.gpus)} -m deedrl run …")
    return Estimate(
        stages=stages,
        model=shape,
        dtype="bf16" if bf16 else "fp32",
        memory=max(parts, key=lambda one: one.peak),
        trains=bool(training),
        available_bytes=min((size for _, size in machine.gpus), default=machine.memory_bytes),
        notes=tuple(notes),
    )


def _training(recipe: Recipe) -> list[Learns]:
    """The stages whose settings updates follow; mining trains by those of the grpo stage."""
    return [stage for stage in recipe.stages if isinstance(stage, Learns)]


def _memory_settings(recipe: Recipe, stage: Learns, machine: Machine, bf16: bool) -> MemorySettings:
    adapter = recipe.model.adapter
    episodes, siblings = _step_episodes(stage)
    load = Load(
        prefix_tokens=PREFIX_TOKENS,
        own_tokens=min(_own_tokens(recipe), recipe.limits.max_tokens_per_episode),
        longest_tokens=_longest_tokens(recipe),
        episodes=episodes,
        group_size=siblings,
        micro_batch_tokens=stage.micro_batch_tokens,
        concurrency=recipe.concurrency,
    )
    return MemorySettings(
        samples=True,  # every stage plays or validates
        reference=isinstance(stage, OnlineSettings) and stage.kl_coefficient > 0,
        critic=stage.critic if isinstance(stage, Ppo) else "none",
        tuning="full" if adapter is None else "lora",
        rank=1 if adapter is None else adapter.rank,
        bf16=bf16,
        gpus=min(len(machine.gpus), 1),  # each holds all that one would, but for its part of what is cut
        shards=max(len(machine.gpus), 1) if recipe.processes.shard != "none" else 1,
        weights_in_shards=recipe.processes.shard == "weights",
        load=load,
        overlapped=isinstance(stage, Grpo) and stage.max_staleness > 0,
    )


def _step_episodes(stage: Learns) -> tuple[int, int]:
    """Episodes that a step learns from, and how many of them are of one task."""
    match stage:
        case Sft():
            return stage.batch_size, 1
        case PairSettings():
            return 2 * stage.pairs_per_step, 2
        case _:
            return stage.tasks_per_step * stage.group_size, stage.group_size


def _turns(recipe: Recipe) -> int:
    return min(TURNS, recipe.limits.max_steps)


def _turn_tokens(recipe: Recipe) -> int:
    return min(TURN_TOKENS, recipe.sampling.max_tokens)


def _own_tokens(recipe: Recipe) -> int:
    """Tokens of an episode after the shared prefix."""
    return TASK_TOKENS + _turns(recipe) * (_turn_tokens(recipe) + OBSERVATION_TOKENS)


def _longest_tokens(recipe: Recipe) -> int:
    """As `_own_tokens`, of an episode that goes to its limits."""
    turn = recipe.sampling.max_tokens + OBSERVATION_TOKENS
    room = recipe.limits.max_tokens_per_episode - PREFIX_TOKENS
    return max(min(TASK_TOKENS + recipe.limits.max_steps * turn, room), 1)


def _stage_cost(recipe: Recipe, stage: AnyStage, shape: ModelShape, speed: Throughput) -> StageCost:
    prompts, episodes, trained = _work(recipe, stage)
    sampled = episodes * _turns(recipe) * _turn_tokens(recipe)
    read = PREFIX_TOKENS + prompts * TASK_TOKENS + episodes * _turns(recipe) * OBSERVATION_TOKENS
    learnt = trained * _own_tokens(recipe)
    passes: float = 6 if recipe.model.adapter is None else 4
    if isinstance(stage, Ppo):
        # Once a step, and not in every pass over it: what the critic expects.
        passes = (passes if stage.critic == "value_head" else 2 * passes) + 2 / stage.updates_per_batch
    if isinstance(stage, OnlineSettings) and stage.kl_coefficient:
        passes += 2 / stage.updates_per_batch  # the reference's forward pass
    if isinstance(stage, OnlineSettings):
        passes += 2 * len(recipe.learned_terms) / stage.updates_per_batch  # reward models read every episode once
    if isinstance(stage, PairSettings):
        passes += 2  # each step's first pass; the reference's, once a pair, is less than what pairs share
    seconds = shape.parameters * (2 * sampled / speed.decode + 2 * read / speed.prefill + passes * learnt / speed.train)
    return StageCost(
        name=stage.title, episodes=round(episodes), sampled_tokens=sampled, trained_tokens=learnt, seconds=seconds
    )


def _work(recipe: Recipe, stage: AnyStage) -> tuple[float, float, float]:
    """Distinct prompts read, episodes sampled and trajectories trained on."""
    tasks = recipe.tasks
    if isinstance(stage, Baseline | Evaluate):
        count = getattr(tasks, stage.split) + (tasks.test_unseen if stage.also_unseen else 0)
        count = min(count, stage.tasks or count)
        return count, count * stage.repeats, 0
    if isinstance(stage, ColdStart):
        repeats = stage.tasks * POSITIVE_SHARE * stage.stability_repeats
        return stage.tasks * 2, stage.tasks * stage.samples_per_task + repeats, 0
    if isinstance(stage, Sft):
        steps = stage.steps or 0
        validations = sum(stage.validates(done) for done in range(1, steps + 1)) * stage.validation_tasks
        trained = stage.steps * stage.batch_size if stage.steps else (stage.epochs or 0) * _positives(recipe)
        return validations, validations, trained
    if isinstance(stage, PairSettings):
        own = stage.tasks * stage.samples_per_task
        pairs = PAIRS_PER_EPISODE * (_played_before(recipe, stage) + own)
        steps = stage.steps or max(1, math.ceil((stage.epochs or 0) * pairs / stage.pairs_per_step))
        validations = (
            (_validations(steps, stage.validate_every) + 1) * stage.validation_tasks if isinstance(stage, Dpo) else 0
        )
        return stage.tasks + validations, own + validations, 2 * steps * stage.pairs_per_step
    if isinstance(stage, OnlineSettings):
        groups = stage.steps * stage.tasks_per_step
        validations = (_validations(stage.steps, stage.validate_every) + 1) * stage.validation_tasks
        refills = stage.refill_attempts if isinstance(stage, Grpo) else 0
        played = groups * stage.group_size * (1 + 0.25 * refills)
        return groups + validations, played + validations, groups * stage.group_size * stage.updates_per_batch
    assert isinstance(stage, Mine)
    grpo = next((other for other in reversed(recipe.stages) if isinstance(other, Grpo)), Grpo())
    groups = stage.steps * grpo.tasks_per_step
    return (
        stage.tasks + groups,
        stage.tasks * stage.attempts + groups * grpo.group_size,
        groups * grpo.group_size,
    )


def _played_before(recipe: Recipe, stage: PairSettings) -> float:
    """Episodes that the stages before `stage` play and may be learnt from, validations not counted."""
    before = recipe.stages[: recipe.stages.index(stage)]
    online = sum(s.steps * s.tasks_per_step * s.group_size for s in before if isinstance(s, OnlineSettings))
    probed = sum(s.tasks * s.attempts for s in before if isinstance(s, Mine))
    return online + probed + sum(s.tasks * s.samples_per_task for s in before if isinstance(s, ColdStart))


def _validations(steps: int, every: int) -> int:
    return steps // every if every else 0


def _positives(recipe: Recipe) -> float:
    starts = [stage for stage in recipe.stages if isinstance(stage, ColdStart)]
    return sum(start.tasks * start.samples_per_task * POSITIVE_SHARE + start.demonstrations for start in starts)


# ---------------------------------------------------------------- in words


def estimate_text(cost: Estimate, machine: Machine) -> Sequence[str]:
    """Lines for people: a table of stages, the memory and what to make of it."""
    lines = [
        f"Estimate for {machine.words} ({cost.dtype}, {cost.model.parameters / 1e6:.0f} M parameters); "
        f"true figures mostly lie between {LOW:g} and {HIGH:g} times these.",
        "",
        f"{'stage':<16}{'episodes':>10}{'sampled tokens':>16}{'trained tokens':>16}{'time':>12}",
    ]
    lines += [
        f"{stage.name:<16}{stage.episodes:>10,}{stage.sampled_tokens:>16,.0f}{stage.trained_tokens:>16,.0f}"
        f"{span(stage.seconds):>12}"
        for stage in cost.stages
    ]
    total = f"between {span(cost.seconds * LOW)} and {span(cost.seconds * HIGH)}"
    lines += [
        "",
        f"time    {total}",
        f"memory  {_memory_words(cost, machine)}",
        *(f"note    {note}" for note in cost.notes),
    ]
    return lines


def _memory_words(cost: Estimate, machine: Machine) -> str:
    parts = cost.memory
    always = [("process", parts.process), ("weights", parts.weights)]
    phases = [("sampling", parts.sampling_peak - parts.held)]
    if cost.trains:
        always.append(("optimiser", parts.optimiser + parts.reference))
        phases.append(("updates", parts.update_peak - parts.held))
    held, larger = (", ".join(f"{name} {size / GIB:.1f}" for name, size in some) for some in (always, phases))
    memory = f"{cost.memory_bytes / GIB:.1f} GiB of {cost.available_bytes / GIB:.1f} GiB"
    memory += " on each GPU" if machine.gpus else ""
    verdict = "fits" if cost.fits else "does NOT fit: lower concurrency or micro_batch_tokens, or take a smaller model"
    together = "" if parts.overlapped else "the larger of "
    joined = f"{held}, and {together}{larger}" if cost.trains else f"{held}, {larger}"
    return f"about {memory} ({joined}): {verdict}"
