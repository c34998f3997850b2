"""What a recipe will cost here, in time and memory: a simple model with its constants in sight.

Time is floating-point work divided by a throughput. A forward pass costs 2 operations per parameter and token, a
training pass 4 with frozen base weights (no weight gradients) and 6 without (Kaplan et al. 2020, section 2.1).
Throughputs were measured where the table says so and guessed from data sheets elsewhere; the answer is a range.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from deedrl.config import Settings
from deedrl.pipeline.recipe import AnyStage, Baseline, ColdStart, Evaluate, Grpo, Mine, Recipe, Sft

GIB = 1024**3
PREFIX_TOKENS = 350
"""System prompt and tool schemas: computed once by a stage that samples, and once in an update."""
TASK_TOKENS = 60
"""The task itself; computed once for siblings."""
TURNS = 3
"""Turns of a typical episode, unless the recipe allows fewer."""
TURN_TOKENS = 48
"""Tokens sampled in a typical turn, unless the recipe allows fewer."""
OBSERVATION_TOKENS = 32
"""Tokens of a typical tool output."""
POSITIVE_SHARE = 0.4
"""Share of sampled trajectories a cold start typically keeps."""
PROCESS_BYTES = 0.6 * GIB
"""The interpreter with torch and transformers loaded."""
HOLES = 1.4
"""What an update holds, over what it computes with: freed pieces of other sizes between those in use. Measured
2026-11-30 on a processor: 3.4 GiB on top of weights and process in updates of 324 + 800 tokens of SmolLM2-135M."""
LOW, HIGH = 0.5, 2.0
"""The estimate's range, as factors of the middle."""


class ModelShape(Settings, frozen=True, kw_only=True):
    """The figures of a model that cost depends on."""

    parameters: float
    layers: int
    hidden: int
    kv_width: int
    """Key heads times head size."""
    vocabulary: int
    known: bool = True
    """False: guessed from the size in the model's name."""


class Machine(Settings, frozen=True, kw_only=True):
    """Where the recipe would run."""

    cores: int
    memory_bytes: int
    """Available now."""
    fast_bf16: bool
    """The processor multiplies bf16 matrices in hardware (AMX)."""
    gpus: tuple[tuple[str, int], ...] = ()
    """Name and memory in bytes of each."""


class Throughput(Settings, frozen=True, kw_only=True):
    """Sustained floating-point operations per second."""

    prefill: float
    decode: float
    train: float


# Per core, measured 2026-11-29 with SmolLM2-135M: bf16 on a Xeon with AMX, float32 on an EPYC with AVX2 (prefill in
# steps of 1024 tokens, decoding about 50 rows at once, updates of 12 samples).
CPU_BF16 = Throughput(prefill=550e9, decode=70e9, train=190e9)
CPU_FP32 = Throughput(prefill=50e9, decode=22e9, train=40e9)
# Per GPU; not measured: 35 %, 3 % and 30 % of the 150 TFLOP/s (dense bf16) of a current 24 GB card.
GPU_BF16 = Throughput(prefill=52e12, decode=4.5e12, train=45e12)

EMBEDDED = ModelShape(parameters=134.5e6, layers=30, hidden=576, kv_width=192, vocabulary=49152)


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
    weights_bytes: float
    optimiser_bytes: float
    cache_bytes: float
    activation_bytes: float
    available_bytes: float
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def memory_bytes(self) -> float:
        """Peak: weights and optimiser, and the larger of what sampling and training need on top."""
        return self.weights_bytes + self.optimiser_bytes + max(self.cache_bytes, self.activation_bytes)

    @property
    def fits(self) -> bool:
        return self.memory_bytes < self.available_bytes


# ---------------------------------------------------------------- what there is


def detect_machine() -> Machine:
    """Cores, free memory and accelerators, without loading torch."""
    gpus: list[tuple[str, int]] = []
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False).stdout
        rows = [line.rsplit(",", 1) for line in answer.splitlines() if "," in line]
        gpus = [(name.strip(), int(mib) * 1024**2) for name, mib in rows if mib.strip().isdigit()]
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text(errors="replace") if cpuinfo.exists() else ""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(cores=cores, memory_bytes=_free_memory(), fast_bf16="amx_bf16" in flags, gpus=tuple(gpus))


def _free_memory() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())
        if found:
            return int(found[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def model_shape(path: str) -> ModelShape:
    """The embedded model's shape, a local folder's, or a guess from a size such as ``7B`` in the name."""
    if path == "embedded":
        return EMBEDDED
    config = Path(path).expanduser() / "config.json"
    if config.is_file():
        return _shape_of(json.loads(config.read_text()))
    size = re.search(r"(\d+(?:\.\d+)?)\s*([bBmM])(?![a-zA-Z])", path)
    billions = float(size[1]) * (1.0 if size[2] in "bB" else 1e-3) if size else 7.0
    scale = (billions / 7.0) ** (1 / 3)
    hidden = max(64, round(4096 * scale))
    return ModelShape(
        parameters=billions * 1e9,
        layers=max(2, round(32 * scale)),
        hidden=hidden,
        kv_width=hidden // 4,
        vocabulary=128_000,
        known=False,
    )


def _shape_of(config: dict[str, int]) -> ModelShape:
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    heads = config.get("num_attention_heads", 1)
    head = config.get("head_dim") or hidden // heads
    kv_width = head * config.get("num_key_value_heads", heads)
    width = config.get("intermediate_size", 4 * hidden)
    embeddings = config["vocab_size"] * hidden * (1 if config.get("tie_word_embeddings") else 2)
    attention = 2 * hidden * head * heads + 2 * hidden * kv_width
    parameters = embeddings + layers * (attention + 3 * hidden * width)
    return ModelShape(
        parameters=parameters, layers=layers, hidden=hidden, kv_width=kv_width, vocabulary=config["vocab_size"]
    )


# ---------------------------------------------------------------- what it takes


def estimate(recipe: Recipe, machine: Machine) -> Estimate:
    """Time and memory of `recipe` on `machine`; see the top of this file for the model."""
    shape = model_shape(recipe.model.path)
    bf16 = recipe.model.dtype == "bf16" or (recipe.model.dtype == "auto" and bool(machine.gpus or machine.fast_bf16))
    throughput = _throughput(machine, bf16)
    stages = tuple(_stage_cost(recipe, stage, shape, throughput) for stage in recipe.stages)
    width = 2 if bf16 else 4
    adapter = recipe.model.adapter
    # A LoRA pair adds rank x (in + out) to each of a layer's seven matrices, about 18 hidden sizes in sum.
    trainable = shape.parameters if adapter is None else adapter.rank * 18 * shape.hidden * shape.layers
    episode = min(_own_tokens(recipe), recipe.limits.max_tokens_per_episode)
    micro_batch = max((s.micro_batch_tokens for s in recipe.stages if isinstance(s, Sft | Grpo)), default=0)
    cache = (PREFIX_TOKENS + recipe.concurrency * episode) * 2 * shape.layers * shape.kv_width
    # Kept for the backward pass, for a token and layer: about 14 tensors of the hidden size and 6 of the MLP's (some
    # 2.7 times as wide). The logits of 512 tokens exist at a time, in float32 and as weights.
    activations = (PREFIX_TOKENS + micro_batch) * (14 + 6 * 2.7) * shape.layers * shape.hidden * width
    activations += 3 * 512 * shape.vocabulary * 4 if micro_batch else 0
    activations *= HOLES
    notes = [] if shape.known else [f"size of {recipe.model.path} guessed from its name"]
    if machine.gpus:
        notes.append("throughput of the GPUs is taken from data sheets, not measured")
    return Estimate(
        stages=stages,
        model=shape,
        dtype="bf16" if bf16 else "fp32",
        weights_bytes=shape.parameters * width + PROCESS_BYTES,
        optimiser_bytes=trainable * 16,
        # Sampling on a processor runs on a copy of the linear layers.
        cache_bytes=cache * width + (0 if machine.gpus else shape.parameters * width),
        activation_bytes=activations,
        available_bytes=sum(memory for _, memory in machine.gpus) if machine.gpus else machine.memory_bytes,
        notes=tuple(notes),
    )


def _throughput(machine: Machine, bf16: bool) -> Throughput:
    one, count = (GPU_BF16, len(machine.gpus)) if machine.gpus else (CPU_FP32, machine.cores)
    if not machine.gpus and bf16 and machine.fast_bf16:
        one = CPU_BF16
    return Throughput(prefill=one.prefill * count, decode=one.decode * count, train=one.train * count)


def _turns(recipe: Recipe) -> int:
    return min(TURNS, recipe.limits.max_steps)


def _turn_tokens(recipe: Recipe) -> int:
    return min(TURN_TOKENS, recipe.sampling.max_tokens)


def _own_tokens(recipe: Recipe) -> int:
    """Tokens of an episode after the shared prefix."""
    return TASK_TOKENS + _turns(recipe) * (_turn_tokens(recipe) + OBSERVATION_TOKENS)


def _stage_cost(recipe: Recipe, stage: AnyStage, shape: ModelShape, speed: Throughput) -> StageCost:
    prompts, episodes, trained = _work(recipe, stage)
    sampled = episodes * _turns(recipe) * _turn_tokens(recipe)
    read = PREFIX_TOKENS + prompts * TASK_TOKENS + episodes * _turns(recipe) * OBSERVATION_TOKENS
    learnt = trained * _own_tokens(recipe)
    passes = 6 if recipe.model.adapter is None else 4
    if isinstance(stage, Grpo) and stage.kl_coefficient:
        passes += 2  # the reference's forward pass
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
        validations = _validations(stage.steps or 0, stage.validate_every) * stage.validation_tasks
        trained = stage.steps * stage.batch_size if stage.steps else (stage.epochs or 0) * _positives(recipe)
        return validations, validations, trained
    if isinstance(stage, Grpo):
        groups = stage.steps * stage.tasks_per_step
        validations = (_validations(stage.steps, stage.validate_every) + 1) * stage.validation_tasks
        played = groups * stage.group_size * (1 + 0.25 * stage.refill_attempts)
        return groups + validations, played + validations, groups * stage.group_size * stage.updates_per_batch
    assert isinstance(stage, Mine)
    grpo = next((other for other in reversed(recipe.stages) if isinstance(other, Grpo)), Grpo())
    groups = stage.steps * grpo.tasks_per_step
    return (
        stage.tasks + groups,
        stage.tasks * stage.attempts + groups * grpo.group_size,
        groups * grpo.group_size,
    )


def _validations(steps: int, every: int) -> int:
    return steps // every if every else 0


def _positives(recipe: Recipe) -> float:
    starts = [stage for stage in recipe.stages if isinstance(stage, ColdStart)]
    return sum(start.tasks * start.samples_per_task * POSITIVE_SHARE + start.demonstrations for start in starts)


# ---------------------------------------------------------------- in words


def estimate_text(cost: Estimate, machine: Machine) -> Sequence[str]:
    """Lines for people: a table of stages, the memory and what to make of it."""
    where = ", ".join(name for name, _ in machine.gpus) or f"{machine.cores} CPU cores"
    lines = [
        f"Estimate for {where} ({cost.dtype}, {cost.model.parameters / 1e6:.0f} M parameters); "
        f"true figures mostly lie between {LOW:g} and {HIGH:g} times these.",
        "",
        f"{'stage':<16}{'episodes':>10}{'sampled tokens':>16}{'trained tokens':>16}{'time':>12}",
    ]
    lines += [
        f"{stage.name:<16}{stage.episodes:>10,}{stage.sampled_tokens:>16,.0f}{stage.trained_tokens:>16,.0f}"
        f"{_span(stage.seconds):>12}"
        for stage in cost.stages
    ]
    total = f"between {_span(cost.seconds * LOW)} and {_span(cost.seconds * HIGH)}"
    parts = (
        ("weights", cost.weights_bytes),
        ("optimiser", cost.optimiser_bytes),
        ("cache", cost.cache_bytes),
        ("activations", cost.activation_bytes),
    )
    detail = ", ".join(f"{name} {value / GIB:.1f}" for name, value in parts)
    memory = f"{cost.memory_bytes / GIB:.1f} GiB of {cost.available_bytes / GIB:.1f} GiB"
    verdict = "fits" if cost.fits else "does NOT fit: lower concurrency or micro_batch_tokens, or take a smaller model"
    lines += [
        "",
        f"time    {total}",
        f"memory  about {memory} ({detail}): {verdict}",
        *(f"note    {note}" for note in cost.notes),
    ]
    return lines


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"
