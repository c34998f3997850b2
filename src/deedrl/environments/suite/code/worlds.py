"""Two vocabularies that share no file, function or noun: one for known tasks, one for the split ``test_unseen``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """Words from which programs of some splits are made."""

    modules: tuple[str, ...]
    verbs: tuple[str, ...]
    nouns: tuple[str, ...]
    broken: tuple[str, ...]
    """How a repair is asked for; ``{path}`` is the file."""
    renames: tuple[str, ...]


KNOWN = World(
    modules=("shop", "bank", "kitchen", "garden", "school", "hotel", "farm", "library"),
    verbs=("get", "find", "make", "show", "calc", "check", "read", "build"),
    nouns=(
        "price", "fee", "tax", "bonus", "weight", "size", "count", "limit", "rate", "score", "age", "width", "height",
        "speed", "level", "stock", "hours", "points", "rent", "pay",
    ),
    broken=("Repair {path}.", "{path} has a bug. Fix it.", "The tests of {path} fail.", "{path} is wrong somewhere."),
    renames=("Rename {old} to {new} in {path}.", "In {path} call {old} {new} instead."),
)  # fmt: skip

UNSEEN = World(
    modules=("harbour", "museum", "clinic", "bakery"),
    verbs=("fetch", "derive", "judge", "tell"),
    nouns=("fare", "toll", "depth", "mass", "dose", "grade", "tide", "crew", "loan", "crop", "angle", "volume"),
    broken=("Please mend {path}.", "{path} does not do what it says."),
    renames=("{old} in {path} should be called {new}.",),
)
