"""How much memory training takes: a pure function of a model's shape and the settings.

What the code keeps is counted tensor by tensor; `benchmarks/plan_check.py` compares the sums with measured peaks. Parts
of a run that exist at the same time are added, the others compared: sampling rests while an update runs (unless it is
to go on, `overlapped`), and a reference pass is over before its update begins.

Widths below: h hidden, q query heads x head size, k key heads x head size, m of the MLP, V vocabulary.
"""

from __future__ import annotations

from typing import Literal

from deedrl.config import PositiveInt, Settings
from deedrl.planning.load import Load, MicroBatch, micro_batch
from deedrl.planning.shape import ModelShape

Tuning = Literal["lora", "full"]
Critic = Literal["none", "value_head", "adapter", "model"]

FLOAT = 4
"""Bytes of a float32, the type of trained parameters, gradients and moments."""
LOGITS_CHUNK = 512
"""Action tokens whose logits exist at one time (`deedrl.training.backend`)."""
PREFILL_TOKENS = 1024
"""New tokens of one pass of sampling (`deedrl.policies.local.engine`, as the next two)."""
GUESSED_TOKENS = 256
"""Guessed tokens of one pass, each with logits of its own ..."""
GUESSES = 6
"""... and of one row."""
SLOT_QUANTUM = 64
"""A row's own part of the cache grows in steps of so many tokens (`deedrl.policies.local.kv_store`)."""
PROCESS = 0.4e9
"""The interpreter with torch, transformers and peft after a first small update; measured 2026-11-30 on Linux."""
GPU_PROCESS = 0.8e9
"""CUDA's own, with its libraries; not measured."""
HOLES = {"lora": 1.1, "full": 1.15}
"""What the heap holds for what is kept of an update, as a factor: glibc leaves freed pieces between those in use.
Measured 2026-11-30 and 2026-12-01 on updates of models of 4 to 235 M parameters: 1.0 to 1.15 (fused layers of an
adapter), and 1.0 to 1.4. It depends on what the process did before, so the same update can take a sixth more or less.
Where layers run as they are (dropout, no compiler), those of an adapter leave more: 1.6 to 1.9."""
MAPPED_HOLES = 1.03
"""The same where large blocks come from the system and go back to it at once (MALLOC_MMAP_THRESHOLD_=1000000)."""
GPU_HOLES = 1.1
"""The same for torch's allocator on GPUs; not measured."""


class MemorySettings(Settings, frozen=True, kw_only=True):
    """What decides about memory beside the model's shape."""

    samples: bool
    """Episodes are sampled in the same process."""
    reference: bool
    """A second pass over the batch, with the trained parameters as they were at the start."""
    critic: Critic
    """What PPO's critic is built on: a head on the policy's hidden states, which has no size to speak of; an adapter of
    its own on the policy's frozen base; or a second model of the same shape. The updates of the last two come after the
    policy's, so that activations of only one exist."""
    tuning: Tuning
    rank: PositiveInt
    """Of the LoRA adapter on all linear layers; without meaning where all weights are trained."""
    bf16: bool
    """Frozen weights and activations in bf16; trained parameters are float32 in any case."""
    gpus: int
    """0: the processor. More than one: weights, trained parameters, gradients and optimiser state are cut into as
    many pieces, rows of the cache too; each has its own micro-batch."""
    load: Load
    shards: PositiveInt = 1
    """Processes, of one GPU or processor each, that the moments are cut among."""
    weights_in_shards: bool = False
    """Weights and gradients are cut as well, but for adapters; sampling has whole weights in place of the pieces."""
    mapped: bool = False
    """On a processor: large blocks of memory are mapped one by one, which leaves no holes and costs time."""
    overlapped: bool = False
    """Sampling goes on while an update runs."""

    @property
    def holes(self) -> float:
        """What is held for what is kept of an update, as a factor."""
        if self.gpus:
            return GPU_HOLES
        return MAPPED_HOLES if self.mapped else HOLES[self.tuning]

    @property
    def fused(self) -> bool:
        """Updates run layers of their own (`deedrl.training.fused`), which keep less."""
        return self.tuning == "lora" and not self.gpus

    @property
    def width(self) -> int:
        """Bytes of a weight and of an activation."""
        return 2 if self.bf16 and self.tuning == "lora" else FLOAT


class Memory(Settings, frozen=True, kw_only=True):
    """Bytes of the machine, or of each GPU."""

    process: float
    weights: float
    """All parameters, an adapter's included."""
    optimiser: float
    """Two moments of every trained parameter, or this process's part of them."""
    reference: float
    """The trained parameters as they were, which KL is measured to."""
    critic: float
    """What it has of its own: parameters, and their moments."""
    gradients: float
    merged_weights: float
    """On a processor an update of an adapter runs on linear layers that it is added to."""
    activations: float
    """Kept for the backward pass: of the prefix and of one micro-batch."""
    logits: float
    """Of one chunk of action tokens, forward and backward."""
    reference_pass: float
    """The present parameters set aside, and the forward pass."""
    cache: float
    """Keys and values of the episodes in flight."""
    sampling_weights: float
    """On a processor sampling runs on a copy of the linear layers; where each process has a piece of the weights, the
    others' pieces."""
    sampling_work: float
    """One pass of sampling: logits, and what a layer needs."""
    overlapped: bool = False
    """An update and sampling take their parts at the same time."""

    @property
    def held(self) -> float:
        """At all times."""
        return self.process + self.weights + self.optimiser + self.reference + self.critic

    @property
    def update_peak(self) -> float:
        passes = max(self.gradients + self.activations + self.logits, self.reference_pass)
        return self.held + self.merged_weights + passes

    @property
    def sampling_peak(self) -> float:
        return self.held + self.cache + self.sampling_weights + self.sampling_work

    @property
    def sampling_alone(self) -> float:
        """The most where nothing is trained."""
        return self.sampling_peak - self.optimiser - self.reference - self.critic

    @property
    def peak(self) -> float:
        if self.overlapped:
            return self.update_peak + self.sampling_peak - self.held
        return max(self.update_peak, self.sampling_peak)


def memory(shape: ModelShape, settings: MemorySettings) -> Memory:
    """The parts for one processor, or for each of the GPUs."""
    parts = max(settings.gpus, 1)
    lora = settings.tuning == "lora"
    cut = settings.shards if settings.weights_in_shards else 1
    whole = (shape.adapter(settings.rank) if lora else shape.parameters) * FLOAT / parts
    moments = 2 * whole / settings.shards
    trained = whole if lora else whole / cut
    base = shape.parameters * settings.width / parts / cut if lora else 0.0
    # A cut model is put together layer by layer, and for the embeddings.
    gathered = max(2 * shape.layer_linear, shape.embedding) * settings.width if parts * cut > 1 else 0.0
    samples = settings.samples
    batch = micro_batch(settings.load)
    forward = forward_bytes(shape, settings, batch)
    return Memory(
        process=GPU_PROCESS if settings.gpus else PROCESS,
        weights=base + trained + gathered,
        optimiser=moments,
        reference=trained if settings.reference else 0.0,
        critic={
            "none": 0.0,
            "value_head": 0.0,
            "adapter": trained + moments,
            "model": base + trained + moments,
        }[settings.critic],
        gradients=trained,
        merged_weights=shape.layers * shape.layer_linear * settings.width if settings.fused else 0.0,
        activations=activation_bytes(shape, settings, batch),
        logits=logits_bytes(shape, settings),
        reference_pass=trained + forward if settings.reference else 0.0,
        cache=cache_bytes(shape, settings) / parts if samples else 0.0,
        sampling_weights=sampling_weights_bytes(shape, settings) if samples else 0.0,
        sampling_work=sampling_work_bytes(shape, settings) if samples else 0.0,
        overlapped=settings.overlapped,
    )


# ---------------------------------------------------------------- an update


def activation_bytes(shape: ModelShape, settings: MemorySettings, batch: MicroBatch) -> float:
    """What is kept for the backward pass, with holes; the prefix's part exists as long as any micro-batch's."""
    prefix = settings.load.prefix_tokens
    tokens, keys = prefix + batch.tokens, prefix + _key_slots(prefix, batch)
    kept = shape.layers * (tokens * _kept_by_token(shape, settings) + keys * 2 * shape.kv_width * settings.width)
    # After the last layer: hidden states of both passes, joined, those of action tokens, and their gradient.
    last = 4 * batch.tokens * shape.hidden * settings.width
    # Who sees whom, for every query head of a key head; one mask for all rows where no beginning is shared.
    seen = prefix + batch.shared + batch.own
    masks = (batch.rows if batch.beginnings else 1) * (shape.query_width // shape.kv_width) * batch.own * seen
    return (kept + last + masks * settings.width) * settings.holes


def _kept_by_token(shape: ModelShape, settings: MemorySettings) -> float:
    """Bytes that a token leaves in one layer, without the keys and values it looks at."""
    h, q, k, m = shape.hidden, shape.query_width, shape.kv_width, shape.mlp_width
    if settings.fused:
        # What either half of the layer took in (2 h); query, and the attention's output by head and by token (3 q);
        # gate and up (2 m); the token's own keys and values (2 k). In float32 the attention's log-sums.
        return shape.heads * FLOAT + (2 * h + 3 * q + 2 * m + 2 * k) * settings.width
    # What two norms took in, which compute in float32; their scales; and the attention's log-sums.
    floats = 2 * h + 2 + shape.heads
    # What the projections and the MLP took in (2 h); query, and the attention's output by head and by token (3 q); gate
    # before and after its activation, up, and their product (4 m); the token's own keys and values (2 k).
    values = 2 * h + 3 * q + 4 * m + 2 * k
    # LoRA: the product with the first factor, in seven matrices. All weights: what the norms' weights multiply.
    values += 7 * settings.rank if settings.tuning == "lora" else 2 * h
    return floats * FLOAT + values * settings.width


def _key_slots(prefix: int, batch: MicroBatch) -> int:
    """Keys that rows of a micro-batch look at, laid out row by row: prefix, shared beginning and own tokens."""
    return batch.beginnings * (prefix + batch.shared) + batch.rows * (prefix + batch.shared + batch.own)


def logits_bytes(shape: ModelShape, settings: MemorySettings) -> float:
    """Of one chunk. With frozen weights nothing of it is kept: float32, and in bf16 beside it.

    Where the head is trained, the backward pass computes it again and holds four of it (logits, their gradient and two
    parts of that), and the gradient of the head's weight before it is added to what earlier chunks gave.
    """
    chunk = LOGITS_CHUNK * shape.vocabulary
    if settings.tuning == "full":
        return 4 * chunk * FLOAT + shape.embedding * FLOAT
    return chunk * FLOAT + (chunk * settings.width if settings.width < FLOAT else 0)


def forward_bytes(shape: ModelShape, settings: MemorySettings, batch: MicroBatch) -> float:
    """A pass that keeps nothing: keys and values, what one layer needs, and logits."""
    prefix = settings.load.prefix_tokens
    keys = shape.layers * 2 * shape.kv_width * (prefix + batch.beginnings * batch.shared + batch.rows * batch.own)
    layer = _layer_values(shape) * batch.tokens + 2 * shape.kv_width * _key_slots(prefix, batch)
    return (keys + layer) * settings.width + 2 * LOGITS_CHUNK * shape.vocabulary * FLOAT


def _layer_values(shape: ModelShape) -> int:
    """The most values a token has in one layer of a forward pass, in the MLP: residual, input, gate, up, product."""
    return 2 * shape.hidden + 3 * shape.mlp_width


# ---------------------------------------------------------------- sampling


def cache_bytes(shape: ModelShape, settings: MemorySettings) -> float:
    """Keys and values: of the prefix once, of every episode in flight in whole steps."""
    load = settings.load
    slots = -(-(max(load.own_tokens, load.longest_tokens) + 1) // SLOT_QUANTUM) * SLOT_QUANTUM
    rows = min(load.concurrency, load.episodes)
    return (load.prefix_tokens + rows * slots) * 2 * shape.layers * shape.kv_width * settings.width


def sampling_weights_bytes(shape: ModelShape, settings: MemorySettings) -> float:
    """A copy of linear layers and head; the pieces of the weights that others hold."""
    copied = 0 if settings.gpus else shape.layers * shape.layer_linear + shape.embedding
    gathered = shape.parameters * (1 - 1 / settings.shards) if settings.weights_in_shards else 0
    return (copied + gathered) * settings.width


def sampling_work_bytes(shape: ModelShape, settings: MemorySettings) -> float:
    """Logits, their weights and, of either kind, one for every row and guess; one layer of a full pass."""
    load = settings.load
    rows = min(load.concurrency, load.episodes)
    places = rows * (1 + min(GUESSES, GUESSED_TOKENS // rows))
    layer = PREFILL_TOKENS * (_layer_values(shape) + 4 * shape.query_width) * settings.width
    return 2 * places * shape.vocabulary * FLOAT + layer
