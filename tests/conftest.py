"""Tiny models for every folder whose tests need one (torch is imported only by those), and patience for hypothesis."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# An example that takes long says that the machine is busy, not that something is wrong.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


class TinyModels:
    """Random models of several families with one tokenizer; each is built once."""

    def __init__(self, root: Path, texts: Sequence[str]) -> None:
        self._root, self._texts = root, texts
        self.folder = cache(self._folder)

    def _folder(self, family: str = "Llama", **options: Any) -> Path:
        import transformers

        from deedrl.policies.local.tiny import build_tiny_model

        name = "-".join([family, *(f"{key}={value}" for key, value in sorted(options.items()))])
        config_class = getattr(transformers, f"{family}Config")
        return build_tiny_model(self._root / name, self._texts, config_class=config_class, **options)

    def load(self, family: str = "Llama", dtype: str = "fp32", **options: Any) -> Any:
        """A fresh `LoadedModel`."""
        from deedrl.policies.local.model import load_model

        return load_model(str(self.folder(family, **options)), dtype=dtype)

    def plain(self, family: str = "Llama", dtype: str = "fp32", **options: Any) -> Any:
        """The same weights in a model that nothing of ours has touched."""
        import torch
        from transformers import AutoModelForCausalLM

        kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
        folder = self.folder(family, **options)
        return AutoModelForCausalLM.from_pretrained(folder, dtype=kind, attn_implementation="eager").eval()

    @staticmethod
    def ids(seed: int, count: int) -> list[int]:
        """Random ordinary tokens (2 … 249: no control token)."""
        import torch

        return torch.randint(2, 250, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sequence[str]], TinyModels]:
    """Makes `TinyModels` whose tokenizer is trained on the texts given."""
    return lambda texts: TinyModels(tmp_path_factory.mktemp("models"), texts)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """One thread for torch: tiny products are slower on many."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def compiler() -> str:
    """Path of a C compiler; what needs one is skipped where there is none."""
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        pytest.skip("there is no C compiler")
    return found


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """A shell starts background jobs deaf to interrupts, and what tests Ctrl-C would wait for nothing."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
