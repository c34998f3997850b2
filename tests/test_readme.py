"""What the README shows is what is in the repository."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = (ROOT / "examples" / "tea_house.py").read_text(encoding="utf-8")


def test_the_environment_shown_is_the_example_word_for_word() -> None:
    [listing] = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    before, found, after = EXAMPLE.partition(listing)
    assert found, "README.md and examples/tea_house.py differ"
    assert "class " not in before, "the listing starts with the class"
    # "six more lines generate its tasks"
    assert len([line for line in after.splitlines() if line.strip()]) == 6
