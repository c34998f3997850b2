"""Compiles the C of this folder with the system's compiler on first use, and keeps the result in the user's cache."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from deedrl.policies.local.source import cache_folder, in_short

SOURCES = tuple(Path(__file__).with_name(name) for name in ("kernels.c", "tiles.c", "products.c"))
_READ = (*SOURCES, *(Path(__file__).with_name(name) for name in ("numbers.h", "tiles.h")))
_LANES = 16  # as in numbers.h
_FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
# What lets sums become vector instructions; not -ffast-math, which changes how the whole process rounds.
_MATHS = ("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math")
_TIME_LIMIT_S = 120.0


class NotCompiled(Exception):
    """There are no kernels here; the text says why and what would change it."""


@functools.cache
def library(head_size: int, groups: int, dtype: torch.dtype) -> ctypes.CDLL:
    """The functions for heads of `head_size` and `groups` query heads to each key/value head. Raises NotCompiled.

    Compiling takes about a second; any number of processes may do it at the same time.
    """
    if dtype not in (torch.bfloat16, torch.float32):
        raise NotCompiled(f"they compute in bfloat16 and float32 only, the model in {dtype}")
    if head_size % _LANES:
        raise NotCompiled(
            f"compiled functions need heads of a multiple of {_LANES} numbers, the model's have {head_size}"
        )
    compiler = _compiler()
    sizes = (f"-DD={head_size}", f"-DG={groups}", *(["-DBF16"] if dtype == torch.bfloat16 else []))
    flags = (*_FLAGS, *_MATHS, *sizes)
    built = cache_folder() / "kernels" / f"{_fingerprint(compiler, flags)}.so"
    if not built.is_file():
        _compile(compiler, flags, built)
    try:
        return ctypes.CDLL(str(built))
    except OSError as error:
        raise NotCompiled(f"{built} cannot be loaded: {in_short(error)}; delete it and run again") from error


def _compiler() -> str:
    named = os.environ.get("CC")
    for name in [named] if named else ["cc", "gcc", "clang"]:
        if found := shutil.which(name):
            return found
    raise NotCompiled(f"there is no C compiler ({named or 'cc, gcc or clang'}); install gcc, or name one in CC")


def _fingerprint(compiler: str, flags: tuple[str, ...]) -> str:
    """Of all that decides what comes out; a cache may be shared by machines with other processors."""
    command = [compiler, "--version"]
    try:
        version = subprocess.run(command, capture_output=True, check=False, timeout=_TIME_LIMIT_S).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotCompiled(f"{compiler} did not run: {in_short(error)}; install gcc, or name one in CC") from error
    parts = (*(path.read_bytes() for path in _READ), " ".join(flags).encode(), version, _processor().encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    return platform.machine() + "".join(sorted({line for line in lines if line.startswith(("flags", "Features"))}))


def _compile(compiler: str, flags: tuple[str, ...], built: Path) -> None:
    try:
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as work:
            made = Path(work) / built.name
            command = [compiler, *flags, *map(str, SOURCES), "-o", str(made), "-lm"]
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIME_LIMIT_S)
            made.replace(built)  # whole or not at all, whoever else compiles the same
    except subprocess.CalledProcessError as error:
        raise NotCompiled(f"{compiler} failed: {error.stderr.strip()[-300:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotCompiled(f"{compiler} did not run: {in_short(error)}") from error
