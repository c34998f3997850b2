"""The script that measures; running it takes minutes, so only its parts are tested."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from deedrl.planning.load import micro_batch
from deedrl.training.packing import pack

SCRIPT = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "plan_check.py"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plan_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["plan_check"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["SHORT", "LONG"])
def test_the_made_up_batch_is_packed_as_the_plan_says(check: ModuleType, name: str) -> None:
    load = getattr(check, name)
    expected = micro_batch(load)
    batches = pack(check.made_up_batch(load, 8000), micro_batch_tokens=load.micro_batch_tokens)
    largest = max(batches, key=lambda batch: batch.ids.numel())
    assert len(largest.prefix_ids) == load.prefix_tokens
    assert largest.shared_ids.shape == (expected.beginnings, expected.shared)
    assert len(largest.ids) == expected.rows
    assert largest.ids.shape[1] == pytest.approx(expected.own, abs=20)


def test_cases_have_different_models_and_names(check: ModuleType) -> None:
    assert len({case.name for case in check.CASES}) == len(check.CASES)
    sizes = {round(case.shape.parameters / 1e6) for case in check.CASES}
    assert len(sizes) >= 5
    assert all(check.estimated(case) > 0.4e9 for case in check.CASES)
