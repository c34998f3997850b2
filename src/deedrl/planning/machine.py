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
    """Sustained floating-point operations per second, and what they do not say."""

    prefill: float
    """Reading: many new tokens in a pass."""
    decode: float
    """Sampling in many rows at once."""
    rows: float
    """What a pass of sampling costs whatever its rows, in rows: it reads all weights and starts all operations."""
    train: float
    """Passes of updates."""

    def sampling(self, parameters: int, *, sampled: float, read: float, passes: float) -> float:
        """Seconds to sample and to read so many tokens in so many passes; 2 operations per parameter and token."""
        return 2 * parameters * ((sampled + passes * self.rows) / self.decode + read / self.prefill)

    def training(self, parameters: int, *, tokens: float, operations: float, micro_batch_tokens: int) -> float:
        """Seconds of passes over `tokens` in micro-batches, with `operations` per parameter and token in all."""
        micro_batches = max(tokens / micro_batch_tokens, 1) if tokens else 0
        return operations * parameters * (tokens + micro_batches * MICRO_BATCH) / self.train


MICRO_BATCH = 150
"""What a micro-batch costs beside its tokens, in tokens. SFT updates of some 300 tokens take 0.9 s, of some 970 1.7 to
2.0 s (medians of align-tone, 2026-12-01, and of the quickstart, four runs of that day; Xeon with AMX, 2 cores)."""

# Per core, SmolLM2-135M. Xeon with AMX, bf16, 2 cores, 2026-12-01: 64 episodes of 4 turns of 32 tokens in 10.1 s (8192
# tokens sampled, 11,000 read, 128 passes; benchmarks/peers), 120 and 40 single answers in 3.7 and 1.7 to 2.6 s
# (align-tone), 84 and 28 episodes of the quickstart in 8 and 8 s; training by GRPO's steps there, which take 2.9 ms for
# each token more, reference pass included, and 20 s for 8 x 8 x 500 tokens.
CPU_BF16 = Throughput(prefill=385e9, decode=385e9, rows=70, train=150e9)
# EPYC with AVX2, float32, 2 cores, 2026-11-30 (docs/performance.md): the same 64 episodes in 95 s, of which 30 s of
# reading and 9 s of weights; the same update in 89 s.
CPU_FP32 = Throughput(prefill=50e9, decode=20e9, rows=10, train=34e9)
# Per GPU; not measured: 35 % and 30 % of the 150 TFLOP/s (dense bf16) of a current 24 GB card; with 64 rows a tenth.
GPU_BF16 = Throughput(prefill=52e12, decode=52e12, rows=600, train=45e12)
MEASURED_RANGE, ASSUMED_RANGE = 1.5, 2.0
"""True times mostly lie within this factor either way: where all that decides was measured, and elsewhere."""


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
    if machine.gpus:
        # Each reads its own copy of the weights, for its part of the rows.
        return _times(GPU_BF16, len(machine.gpus), rows=GPU_BF16.rows * len(machine.gpus))
    one = CPU_BF16 if bf16 and machine.fast_bf16 else CPU_FP32
    return _times(one, machine.cores, rows=one.rows)


def _times(one: Throughput, count: int, rows: float) -> Throughput:
    return Throughput(prefill=one.prefill * count, decode=one.decode * count, rows=rows, train=one.train * count)


def span(seconds: float) -> str:
    """A time in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"
