"""What one training step of an algorithm would cost in memory and time."""

from __future__ import annotations

from typing import Literal

from deedrl.config import PositiveInt, Settings
from deedrl.errors import ConfigError
from deedrl.planning.load import TYPICAL, Load
from deedrl.planning.machine import ASSUMED_RANGE, MEASURED_RANGE, Machine, throughput
from deedrl.planning.memory import Critic, Memory, MemorySettings, Tuning, memory
from deedrl.planning.shape import ModelShape

Algorithm = Literal["sft", "grpo", "dpo", "ppo"]
DType = Literal["auto", "bf16", "fp32"]
SAMPLED_SHARE = TYPICAL.sampled / TYPICAL.own
"""Of an episode's own tokens, the share that is sampled rather than read."""
DATA_SHEETS = "throughput of the GPUs is taken from data sheets, not measured"


class Request(Settings, frozen=True, kw_only=True):
    """What is to be planned."""

    shape: ModelShape
    machine: Machine
    algorithm: Algorithm
    tuning: Tuning = "lora"
    rank: PositiveInt = 16
    dtype: DType = "auto"
    critic: Critic = "value_head"
    """Of PPO; the other algorithms have none."""
    load: Load = Load()
    mapped: bool = False
    """See `MemorySettings.mapped`."""

    @property
    def bf16(self) -> bool:
        """Whether frozen weights and activations are in bf16; parameters that are trained never are."""
        automatic = self.dtype == "auto" and bool(self.machine.gpus or self.machine.fast_bf16)
        return self.tuning == "lora" and (self.dtype == "bf16" or automatic)

    @property
    def samples(self) -> bool:
        """Whether the policy plays the episodes it learns from."""
        return self.algorithm in ("grpo", "ppo")

    @property
    def memory(self) -> Memory:
        """Of the machine, or of each GPU."""
        settings = MemorySettings(
            samples=self.samples,
            reference=self.algorithm in ("grpo", "ppo"),  # DPO keeps the log-probabilities alone
            critic=self.critic if self.algorithm == "ppo" else "none",
            tuning=self.tuning,
            rank=self.rank,
            bf16=self.bf16,
            gpus=len(self.machine.gpus),
            load=self.load,
            mapped=self.mapped,
        )
        return memory(self.shape, settings)

    @property
    def available(self) -> int:
        """Bytes of the machine, or of the smallest GPU."""
        return min((size for _, size in self.machine.gpus), default=self.machine.memory_bytes)

    @property
    def fits(self) -> bool:
        return self.memory.peak < self.available


class StepTime(Settings, frozen=True, kw_only=True):
    """Seconds of one step; see `times_within`."""

    sampling: float
    reference: float
    """Of the pass before the update: the reference's, or of DPO the policy's, which says how pairs weigh."""
    update: float

    @property
    def total(self) -> float:
        return self.sampling + self.reference + self.update


def checked(request: Request) -> Request:
    """`request` as its algorithm reads it; raises ConfigError where settings do not go together."""
    load = request.load
    if request.tuning == "full" and request.dtype == "bf16":
        raise ConfigError(
            "--dtype: expected fp32 with --tuning full, got bf16, in which small updates round to nothing; "
            "leave --dtype out, or train an adapter"
        )
    if request.tuning == "lora" and request.rank > request.shape.hidden:
        raise ConfigError(
            f"--rank: expected at most the model's hidden size of {request.shape.hidden}, got {request.rank}; lower it"
        )
    if request.algorithm == "ppo" and request.critic == "none":
        raise ConfigError("--critic: expected value_head, adapter or model for ppo, got none")
    if request.algorithm == "ppo" and request.critic == "adapter" and request.tuning == "full":
        raise ConfigError(
            "--critic: expected value_head or model with --tuning full, got adapter, which needs a frozen base to share"
        )
    if request.algorithm == "grpo" and load.group_size < 2:
        raise ConfigError("--group-size: expected at least 2 for grpo, which compares siblings, got 1; raise it")
    if request.algorithm == "grpo" and load.episodes < load.group_size:
        raise ConfigError(
            f"--episodes: expected at least the {load.group_size} of one group, got {load.episodes}; "
            "raise it or lower --group-size"
        )
    # Demonstrations are of different tasks, and a preference is a pair of answers to one.
    siblings = {"sft": 1, "dpo": 2}.get(request.algorithm, load.group_size)
    return _with_load(request, group_size=siblings)


def step_time(request: Request) -> StepTime:
    """Floating-point work divided by throughput: 2 operations per parameter and token forward, 4 for an update of an
    adapter and 6 of all weights (Kaplan et al. 2020, section 2.1). Every episode differs from its siblings after the
    task, has a signal, and is as long as all others."""
    load, speed = request.load, throughput(request.machine, request.bf16)
    parameters, groups = request.shape.parameters, -(-load.episodes // load.group_size)
    shared = load.prefix_tokens + groups * load.task_tokens
    learnt = shared + load.episodes * (load.own_tokens - load.task_tokens)
    chain = load.own_tokens * SAMPLED_SHARE if request.samples else 0.0
    sampled = load.episodes * chain
    read = max(learnt - sampled, 0.0) if sampled else 0.0
    waves = max(load.episodes / (load.concurrency * max(len(request.machine.gpus), 1)), 1.0)
    passes = 4 if request.tuning == "lora" else 6
    if request.algorithm == "ppo":
        # Before the update the critic says what it expects; one with its own trunk is updated in passes of its own.
        passes = (passes if request.critic == "value_head" else 2 * passes) + 2

    def training(operations: float) -> float:
        return speed.training(
            parameters, tokens=learnt, operations=operations, micro_batch_tokens=load.micro_batch_tokens
        )

    return StepTime(
        sampling=speed.sampling(parameters, sampled=sampled, read=read, passes=waves * chain),
        reference=training(2) if request.algorithm != "sft" else 0.0,
        update=training(passes),
    )


def times_within(request: Request, seconds: float) -> tuple[float, float]:
    """Between which a time that `step_time` gives mostly lies in truth."""
    factor = ASSUMED_RANGE if request.machine.gpus or not request.shape.known else MEASURED_RANGE
    return seconds / factor, seconds * factor


def notes(request: Request) -> tuple[str, ...]:
    """What a reader of the figures must know."""
    found = []
    if not request.shape.known:
        found.append("the model's shape is guessed from the size in its name; give its folder for a better estimate")
    if request.algorithm == "dpo":
        found.append("DPO's figures are the formula's alone, not checked by measurement")
    if request.algorithm == "ppo" and request.critic == "model":
        found.append("a second model as the critic is for comparison: recipes build value_head or adapter")
    if request.machine.gpus:
        found.append(f"{DATA_SHEETS}; memory on GPUs is the formula's alone")
    elif request.bf16:
        found.append("memory was checked by measurement in float32, not in bf16")
    return tuple(found)


def _with_load(request: Request, **changes: int) -> Request:
    from msgspec.structs import replace

    return replace(request, load=replace(request.load, **changes))
