"""Where training would run: this machine, or GPUs described in words such as ``2x24GB``; and how fast they are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from msgspec.structs import replace

from deedrl.config import Settings
from deedrl.errors import ConfigError

GIB = 1024**3
MAX_GPUS = 100_000


class Machine(Settings, frozen=True, kw_only=True):
    """Processor, memory and GPUs."""

    cores: int
    memory_bytes: int
    """Available now."""
    fast_bf16: bool
    """The processor multiplies bf16 matrices in hardware (AMX)."""
    gpus: tuple[tuple[str, int], ...] = ()
    """Name and memory in bytes of each."""

    @property
    def words(self) -> str:
        return ", ".join(name for name, _ in self.gpus) or f"{self.cores} CPU cores"


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
LOW, HIGH = 0.5, 2.0
"""The range of a time, as factors of the middle."""


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


def used_by(device: str, machine: Machine) -> Machine:
    """The part of `machine` that a recipe's `model.device` computes on: of GPUs one, or all with a process for each."""
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cuda"):
        return replace(machine, gpus=())
    return replace(machine, gpus=machine.gpus[int(index) :][:1] if index else machine.gpus)


def _free_memory() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())
        if found:
            return int(found[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def parse_gpus(text: str) -> tuple[tuple[str, int], ...]:
    """Name and bytes of each GPU in ``2x24GB``, ``24GB`` or ``8x80``; none for ``cpu`` and ``none``.

    A gigabyte is read as 2**30 bytes, as in the names of cards. Raises ConfigError for anything else.
    """
    plain = text.strip().lower().replace(" ", "")
    if plain in ("cpu", "none", "0"):
        return ()
    found = re.fullmatch(r"(?:(\d{1,6})[x×*])?(\d{1,5}(?:\.\d+)?)(?:gib|gb|g)?", plain)
    count, size = (int(found[1] or 1), float(found[2])) if found else (0, 0.0)
    if not 1 <= count <= MAX_GPUS or size <= 0:
        raise ConfigError(
            f"--gpus: expected a number of GPUs and the GB of each, such as 2x24GB or 80GB, or cpu; got '{text}'"
        )
    return ((f"GPU of {size:g} GB", int(size * GIB)),) * count


def throughput(machine: Machine, bf16: bool) -> Throughput:
    """Of all cores, or of all GPUs."""
    one, count = (GPU_BF16, len(machine.gpus)) if machine.gpus else (CPU_FP32, machine.cores)
    if not machine.gpus and bf16 and machine.fast_bf16:
        one = CPU_BF16
    return Throughput(prefill=one.prefill * count, decode=one.decode * count, train=one.train * count)


def span(seconds: float) -> str:
    """A time in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"
