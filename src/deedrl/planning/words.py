"""A plan for people, and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deedrl.planning.machine import GIB, span
from deedrl.planning.plan import Request, notes, step_time, times_within
from deedrl.planning.remedies import remedies

_HELD = ("process", "weights", "optimiser", "reference", "critic")
_UPDATE = ("merged_weights", "gradients", "activations", "logits")
_SAMPLING = ("cache", "sampling_weights", "sampling_work")
_NAMES = {
    "optimiser": "optimiser state",
    "reference": "reference policy",
    "critic": "critic (its weights and optimiser state)",
    "reference_pass": "reference pass, before it",
    "cache": "KV cache",
    "sampling_weights": "copy of the weights",
    "merged_weights": "weights with the adapter",
    "sampling_work": "logits and one layer",
}


def plan_json(request: Request, model: str) -> dict[str, Any]:
    """The plan as plain values: bytes, seconds, and the flags that would make it fit."""
    parts, time = request.memory, step_time(request)
    memory = {name: round(getattr(parts, name)) for name in parts.__struct_fields__}
    return {
        "model": model,
        "parameters": request.shape.parameters,
        "algorithm": request.algorithm,
        "tuning": request.tuning,
        "dtype": "bf16" if request.bf16 else "fp32",
        "gpus": len(request.machine.gpus),
        "memory_bytes": memory
        | {
            "update_peak": round(parts.update_peak),
            "sampling_peak": round(parts.sampling_peak),
            "peak": round(parts.peak),
        },
        "available_bytes": request.available,
        "fits": request.fits,
        "remedies": [list(flags) for flags in _remedies(request)],
        "seconds": {
            "sampling": time.sampling,
            "reference": time.reference,
            "update": time.update,
            "total": time.total,
            "range": list(times_within(request, time.total)),
        },
        "notes": list(notes(request)),
    }


def plan_text(request: Request, model: str) -> Sequence[str]:
    """Lines for people: memory by part, time of a step, and what to change."""
    tuning = f"an adapter of rank {request.rank}" if request.tuning == "lora" else "all weights"
    size = f"{request.shape.parameters / 1e6:,.0f} M parameters, {'bf16' if request.bf16 else 'fp32'}"
    gpus = request.machine.gpus
    where = f"{len(gpus)} x {gpus[0][0]}" if gpus else request.machine.words
    return [
        f"{request.algorithm.upper()} of {tuning}: {model} ({size}) on {where}",
        "",
        *_memory_lines(request),
        "",
        *_time_lines(request),
        "",
        *_verdict(request),
        *(f"note: {note}" for note in notes(request)),
    ]


def _memory_lines(request: Request) -> list[str]:
    parts = request.memory

    def line(name: str) -> list[str]:
        value = getattr(parts, name)
        return [f"  {_NAMES.get(name, name):<44}{value / GIB:>9.2f}"] if value else []

    def lines(names: Sequence[str]) -> list[str]:
        return [shown for name in names for shown in line(name)]

    sampling = lines(_SAMPLING)
    return [
        f"{'memory of each GPU' if request.machine.gpus else 'memory':<46}{'GiB':>9}",
        *lines(_HELD),
        *(["while sampling", *sampling] if sampling else []),
        "in an update",
        *lines(_UPDATE),
        *line("reference_pass"),
        f"{'most at one time':<46}{parts.peak / GIB:>9.2f}",
    ]


def _time_lines(request: Request) -> list[str]:
    time, load = step_time(request), request.load
    first = "first pass" if request.algorithm == "dpo" else "reference pass"
    parts = (("sampling", time.sampling), (first, time.reference), ("update", time.update))
    tokens = f"{load.episodes} episodes of {load.prefix_tokens} + {load.own_tokens} tokens"
    low, high = map(span, times_within(request, time.total))
    return [
        f"{f'time of a step ({tokens})':<46}",
        *(f"  {name:<44}{span(value):>9}" for name, value in parts if value),
        f"{'together':<46}{span(time.total):>9}, mostly between {low} and {high}",
    ]


def _verdict(request: Request) -> list[str]:
    figures = f"{request.memory.peak / GIB:.1f} GiB of {request.available / GIB:.1f} GiB"
    if request.fits:
        return [f"fits: {figures}"]
    ways = [f"  {' '.join(flags)}" for flags in _remedies(request)]
    if not ways:
        return [f"does NOT fit: {figures}; no change of settings is enough, take a smaller model or a larger machine"]
    return [
        f"does NOT fit: {figures}; any of these would:" if len(ways) > 1 else f"does NOT fit: {figures}; this would:",
        *ways,
    ]


def _remedies(request: Request) -> tuple[tuple[str, ...], ...]:
    return () if request.fits else remedies(request)
