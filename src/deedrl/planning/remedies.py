"""What to change where a plan does not fit: which flags of `deedrl plan`, and to what value."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from deedrl.planning.machine import GIB
from deedrl.planning.plan import Request

MAPPED = "MALLOC_MMAP_THRESHOLD_=1000000 in the environment"
MOST_GPUS = 1024

Change = Callable[[Request], Iterator[Request]]
"""Variants of a request, from the one nearest to it to the one that takes least."""


def remedies(request: Request) -> tuple[tuple[str, ...], ...]:
    """Flags that make a request fit: each that does alone, else the fewest of them in the order below; none if even
    all of them do not."""
    alone = [fitting for change in _CHANGES if (fitting := _first_fitting(change(request)))]
    if alone:
        return tuple(flags(request, changed) for changed in alone)
    combined = request
    for change in _CHANGES:
        variants = list(change(combined))
        if fitting := _first_fitting(iter(variants)):
            return (flags(request, fitting),)
        if variants and variants[-1].memory.peak < combined.memory.peak:
            combined = variants[-1]
    return ()


def _first_fitting(variants: Iterator[Request]) -> Request | None:
    return next((variant for variant in variants if variant.fits), None)


def flags(request: Request, changed: Request) -> tuple[str, ...]:
    """What has to be given to get from one to the other."""
    gpus = changed.machine.gpus
    words = {
        "tuning": (request.tuning, changed.tuning, f"--tuning {changed.tuning}"),
        "algorithm": (request.algorithm, changed.algorithm, f"--algorithm {changed.algorithm}"),
        "critic": (request.critic, changed.critic, f"--critic {changed.critic}"),
        "dtype": (request.dtype, changed.dtype, f"--dtype {changed.dtype}"),
        "micro": (
            request.load.micro_batch_tokens,
            changed.load.micro_batch_tokens,
            f"--micro-batch-tokens {changed.load.micro_batch_tokens}",
        ),
        "rows": (request.load.concurrency, changed.load.concurrency, f"--concurrency {changed.load.concurrency}"),
        "mapped": (request.mapped, changed.mapped, MAPPED),
        "gpus": (len(request.machine.gpus), len(gpus), f"--gpus {len(gpus)}x{gpus[0][1] / GIB:g}GB" if gpus else ""),
    }
    return tuple(flag for old, new, flag in words.values() if old != new)


# ---------------------------------------------------------------- single changes, the cheapest first


def _smaller_micro_batches(request: Request) -> Iterator[Request]:
    # One episode is the least a micro-batch can hold.
    for tokens in _halves(request.load.micro_batch_tokens, request.load.own_tokens):
        yield replace(request, load=replace(request.load, micro_batch_tokens=tokens))


def _fewer_at_once(request: Request) -> Iterator[Request]:
    if request.samples:
        for rows in _halves(min(request.load.concurrency, request.load.episodes), 1):
            yield replace(request, load=replace(request.load, concurrency=rows))


def _bf16(request: Request) -> Iterator[Request]:
    if request.tuning == "lora" and not request.bf16:
        yield replace(request, dtype="bf16")


def _adapter(request: Request) -> Iterator[Request]:
    if request.tuning == "full":
        yield replace(request, tuning="lora")


def _critic_on_the_policy(request: Request) -> Iterator[Request]:
    if request.algorithm == "ppo" and request.critic != "value_head":
        yield replace(request, critic="value_head")


def _without_critic(request: Request) -> Iterator[Request]:
    if request.algorithm == "ppo" and request.load.group_size > 1:
        yield replace(request, algorithm="grpo")


def _mapped(request: Request) -> Iterator[Request]:
    if not request.machine.gpus:
        yield replace(request, mapped=True)


def _more_gpus(request: Request) -> Iterator[Request]:
    gpus = request.machine.gpus
    count = 2 * len(gpus)
    while gpus and count <= MOST_GPUS:
        yield replace(request, machine=replace(request.machine, gpus=gpus[:1] * count))
        count *= 2


_CHANGES: tuple[Change, ...] = (
    _smaller_micro_batches,
    _fewer_at_once,
    _mapped,
    _bf16,
    _adapter,
    _critic_on_the_policy,
    _without_critic,
    _more_gpus,
)


def _halves(value: int, least: int) -> Iterator[int]:
    while value > least:
        value = max(value // 2, least)
        yield value
