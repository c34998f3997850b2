"""What a recipe will cost here, in time and memory: a simple model with its constants in sight.

Time is work (`deedrl.pipeline.work`) divided by a throughput (`deedrl.planning.machine`), which was measured on two
processors and taken from data sheets for GPUs; how long episodes are, the environment is asked
(`deedrl.pipeline.lengths`). The answer is a range. Memory is that of `deedrl plan` (`deedrl.planning.memory`), of the
stage that takes most.
"""

from __future__ import annotations

from collections.abc import Sequence

from deedrl.config import Settings
from deedrl.pipeline.lengths import episode_lengths
from deedrl.pipeline.pair_settings import PairSettings
from deedrl.pipeline.ppo_settings import Ppo
from deedrl.pipeline.recipe import AnyStage, Grpo, Recipe, Sft
from deedrl.pipeline.stage_base import OnlineSettings
from deedrl.pipeline.work import work_of
from deedrl.planning.load import EpisodeLengths, Load
from deedrl.planning.machine import ASSUMED_RANGE, GIB, MEASURED_RANGE, Machine, Throughput, span, throughput
from deedrl.planning.memory import Memory, MemorySettings, memory
from deedrl.planning.plan import DATA_SHEETS
from deedrl.planning.shape import ModelShape, model_shape

Learns = Sft | OnlineSettings | PairSettings
"""Stages that take optimiser steps by settings of their own."""


class StageCost(Settings, frozen=True, kw_only=True):
    """One stage's share."""

    name: str
    episodes: int
    sampled_tokens: float
    trained_tokens: float
    """Computed in passes with gradients."""
    seconds: float


class Estimate(Settings, frozen=True, kw_only=True):
    """Cost of a recipe; seconds are the middle of a range."""

    stages: tuple[StageCost, ...]
    model: ModelShape
    dtype: str
    memory: Memory
    """Of the stage that takes most; of each GPU, if there are any."""
    trains: bool
    available_bytes: float
    factor: float
    """True times mostly lie between 1 / factor and factor times `seconds`."""
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

    Plays a few of the environment's demonstrations. Raises ModelError where the size of the recipe's model cannot be
    told.
    """
    shape = model_shape(recipe.model.path)
    bf16 = recipe.model.dtype == "bf16" or (recipe.model.dtype == "auto" and bool(machine.gpus or machine.fast_bf16))
    speed = throughput(machine, bf16)
    lengths, assumed = episode_lengths(recipe)
    # Each process has episodes of its own in flight.
    concurrency = recipe.concurrency * max(len(machine.gpus), 1)
    stages = tuple(_stage_cost(recipe, stage, lengths, shape, speed, concurrency) for stage in recipe.stages)
    training = _training(recipe)
    # Without training only the parts of sampling count, which are the same for all stages.
    parts = [memory(shape, _memory_settings(recipe, stage, machine, bf16, lengths)) for stage in training or [Grpo()]]
    return Estimate(
        stages=stages,
        model=shape,
        dtype="bf16" if bf16 else "fp32",
        memory=max(parts, key=lambda one: one.peak),
        trains=bool(training),
        available_bytes=min((size for _, size in machine.gpus), default=machine.memory_bytes),
        factor=ASSUMED_RANGE if machine.gpus or assumed or not shape.known else MEASURED_RANGE,
        notes=(*assumed, *_notes(recipe, machine, shape)),
    )


def _notes(recipe: Recipe, machine: Machine, shape: ModelShape) -> list[str]:
    notes = [] if shape.known else [f"size of {recipe.model.path} guessed from its name"]
    notes += [
        f"{stage.title} ends at its target; half way from the first validation to its last step is assumed"
        for stage in recipe.stages
        if isinstance(stage, Sft) and stage.target_completion is not None
    ]
    if machine.gpus:
        notes.append(DATA_SHEETS)
    if len(machine.gpus) > 1:
        notes.append(f"one process a GPU: torchrun --nproc_per_node {len(machine.gpus)} -m deedrl run …")
    return notes


def _training(recipe: Recipe) -> list[Learns]:
    """The stages whose settings updates follow; mining trains by those of the grpo stage."""
    return [stage for stage in recipe.stages if isinstance(stage, Learns)]


def _memory_settings(
    recipe: Recipe, stage: Learns, machine: Machine, bf16: bool, lengths: EpisodeLengths
) -> MemorySettings:
    adapter = recipe.model.adapter
    episodes, siblings = _step_episodes(stage)
    load = Load(
        prefix_tokens=round(lengths.prefix),
        own_tokens=max(round(min(lengths.own, _longest_tokens(recipe, lengths))), 1),
        longest_tokens=_longest_tokens(recipe, lengths),
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


def _longest_tokens(recipe: Recipe, lengths: EpisodeLengths) -> int:
    """Tokens after the prefix of an episode that goes to its limits."""
    turn = recipe.sampling.max_tokens + lengths.observation
    room = recipe.limits.max_tokens_per_episode - lengths.prefix
    return max(round(min(lengths.task + recipe.limits.max_steps * turn, room)), 1)


def _stage_cost(
    recipe: Recipe, stage: AnyStage, lengths: EpisodeLengths, shape: ModelShape, speed: Throughput, concurrency: int
) -> StageCost:
    work = work_of(recipe, stage, lengths)
    sampling = [
        play.times
        * speed.sampling(shape.parameters, sampled=play.sampled, read=play.read, passes=play.passes(concurrency))
        for play in work.plays
    ]
    training = [
        learn.times
        * speed.training(
            shape.parameters,
            tokens=learn.tokens,
            operations=learn.operations,
            micro_batch_tokens=learn.micro_batch_tokens,
        )
        for learn in work.learns
    ]
    return StageCost(
        name=stage.title,
        episodes=round(sum(play.times * play.episodes for play in work.plays)),
        sampled_tokens=sum(play.times * play.episodes * play.lengths.sampled for play in work.plays),
        trained_tokens=sum(learn.times * learn.updates * learn.tokens for learn in work.learns),
        seconds=sum(sampling) + sum(training),
    )


# ---------------------------------------------------------------- in words


def estimate_text(cost: Estimate, machine: Machine) -> Sequence[str]:
    """Lines for people: a table of stages, the memory and what to make of it."""
    lines = [
        f"Estimate for {machine.words} ({cost.dtype}, {cost.model.parameters / 1e6:.0f} M parameters); "
        f"true figures mostly lie between {1 / cost.factor:.2g} and {cost.factor:g} times these.",
        "",
        f"{'stage':<16}{'episodes':>10}{'sampled tokens':>16}{'trained tokens':>16}{'time':>12}",
    ]
    lines += [
        f"{stage.name:<16}{stage.episodes:>10,}{stage.sampled_tokens:>16,.0f}{stage.trained_tokens:>16,.0f}"
        f"{span(stage.seconds):>12}"
        for stage in cost.stages
    ]
    total = f"between {span(cost.seconds / cost.factor)} and {span(cost.seconds * cost.factor)}"
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
