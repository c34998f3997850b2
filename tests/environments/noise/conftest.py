from __future__ import annotations

import pytest

from deedrl.environments.noise import KINDS, levels


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of level 1 comes whenever it can."""
    monkeypatch.setattr(levels, "CHANCE_AT_FULL_LEVEL", dict.fromkeys(KINDS, 1.0))
