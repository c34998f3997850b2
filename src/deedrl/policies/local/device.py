"""Where the model's numbers are: the one place that decides it. Everything that holds tensors asks the model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from deedrl.errors import ConfigError

_LOCAL_RANKS = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK")
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")
_BY_NAME_ONLY = ("mps",)
"""Accelerators that ``auto`` leaves alone: on a Mac DeedRL's kernels on the processor are the path that is known."""


def chosen_device(name: str = "auto", environ: Mapping[str, str] = os.environ) -> torch.device:
    """The device of this process for ``auto``, ``cpu``, or an accelerator as torch calls it: ``cuda``, ``cuda:1``, ….

    ``auto`` is the accelerator that torch sees, else the processor. Of several processes on a machine each has the
    accelerator of its own number. It becomes torch's current device. Raises ConfigError where there is none such.
    """
    if name == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        name = "cpu" if found is None or found.type in _BY_NAME_ONLY else found.type
    device = _read(name)
    if device.type == "cpu":
        return torch.device("cpu")
    count = _available(device.type)
    if not count:
        raise ConfigError(
            f"model.device: torch sees no '{device.type}' here; take auto or cpu, or install a torch for it"
        )
    rank, processes = _number(_LOCAL_RANKS, environ), _number(_LOCAL_SIZES, environ)
    if device.index is not None and processes > 1:
        raise ConfigError(
            f"model.device: '{name}' names one device, and {processes} processes were started on this machine; take "
            f"'{device.type}', which gives each its own"
        )
    index = rank if device.index is None else device.index
    if index >= count:
        asks = f"'{name}'" if device.index is not None else f"process {rank + 1} on this machine"
        raise ConfigError(
            f"model.device: {asks} wants {device.type}:{index}, and torch sees {count} of them, counted from 0; start "
            "one process for each, or take cpu"
        )
    module = getattr(torch, device.type)
    if hasattr(module, "set_device"):
        module.set_device(index)
    return torch.device(device.type, index)


def _read(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError:
        raise ConfigError(
            f"model.device: expected auto, cpu, cuda, cuda:1 or another device of torch, got '{name}'"
        ) from None


def _available(kind: str) -> int:
    """How many devices of this kind torch can use."""
    module: Any = getattr(torch, kind, None)
    return int(module.device_count()) if hasattr(module, "is_available") and module.is_available() else 0


def _number(names: tuple[str, ...], environ: Mapping[str, str]) -> int:
    return next((int(environ[name]) for name in names if environ.get(name, "").isdigit()), 0)


def message_backend() -> str | None:
    """What carries tensors between processes that have an accelerator each, as torch.distributed names it: the
    accelerator's own library for its tensors and gloo for those on the processor. None: torch's own choice."""
    if not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    own = torch.distributed.Backend.default_device_backend_map.get(found.type if found else "cpu")
    return None if found is None or own in (None, "gloo") else f"cpu:gloo,{found.type}:{own}"


def multiplies_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies bf16 natively."""
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported())
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "xpu"


def device_peak_gb(device: torch.device) -> float | None:
    """The most that tensors took on a CUDA device so far, in GB (10^9 bytes); None on others."""
    return torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else None


@contextmanager
def own_random_streams(device: torch.device) -> Iterator[None]:
    """Inside the block torch's global streams may be seeded; afterwards those of processor and device are as before."""
    if device.type in ("cpu", "meta"):
        with torch.random.fork_rng(devices=[]):
            yield
        return
    with torch.random.fork_rng(devices=[device.index or 0], device_type=device.type):
        yield


@contextmanager
def adapter_precision(model: Any) -> Iterator[None]:
    """Products of a float32 adapter in the base model's own type, where that is smaller.

    The adapter's parameters and gradients stay float32. Without this PEFT computes the adapter's part of every layer
    in float32, and converts the layer's whole input for it.
    """
    with ExitStack() as stack:
        if hasattr(model, "peft_config") and model.dtype in (torch.bfloat16, torch.float16):
            from peft.helpers import disable_input_dtype_casting

            stack.enter_context(disable_input_dtype_casting(model))
            stack.enter_context(torch.autocast(model.device.type, dtype=model.dtype))
        yield
