"""People's labels in JSON lines: which of two episodes is better, and how good a turn is. Append-only.

A label that was taken back stays in the file; a line of its own takes it back. A line that is no label is an error that
names it: a label is work of a person, and none is passed over.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from deedrl.errors import StoreError
from deedrl.files import append_bytes
from deedrl.store.files import locked
from deedrl.types import Record

LABELS = "labels.jsonl"
"""A run's own file of people's labels of pairs."""
LOCK_TIMEOUT_S = 10.0

Choice = Literal["left", "right", "tie", "skip"]
Text = Annotated[str, Meta(min_length=1)]


class PairLabel(Record, frozen=True, forbid_unknown_fields=True):
    """What a rater says of two episodes of one task."""

    left: Text
    """Episode id, as is `right`: the sides as they were shown."""
    right: Text
    choice: Literal["left", "right", "tie", "skip", "undo"]
    """The better side; ``tie``: neither; ``skip``: cannot say; ``undo``: takes this rater's label of the pair back."""
    rater: str = ""
    time: str = ""
    """When, in ISO 8601."""

    @property
    def pair(self) -> tuple[str, str]:
        """Both episodes, the same whichever side each was shown on."""
        return min(self.left, self.right), max(self.left, self.right)

    @property
    def better(self) -> str | None:
        """Id of the episode that was chosen; None for any other choice."""
        return {"left": self.left, "right": self.right}.get(self.choice)


class TurnLabel(Record, frozen=True, forbid_unknown_fields=True):
    """What a rater says of one turn of an episode."""

    episode_id: Text
    step: Annotated[int, Meta(ge=0)]
    """Index of the turn's step."""
    label: Annotated[float, Meta(ge=0, le=1)]
    """1 is right, 0 is wrong."""
    rater: str = ""
    time: str = ""


LabelType = TypeVar("LabelType", PairLabel, TurnLabel)


class Line(NamedTuple):
    """Where a label stands."""

    path: Path
    number: int

    def __str__(self) -> str:
        return f"{self.path}, line {self.number}"


def read_labels(path: Path, kind: type[LabelType]) -> list[tuple[Line, LabelType]]:
    """Every label of a file in order, each with its line; blank lines are skipped.

    Raises StoreError naming file and line for a line that is no label of this kind, and for a file that cannot be read.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise StoreError(f"cannot read the labels in {path}: {error.strerror or error}") from error
    found = []
    for number, raw in enumerate(lines, start=1):
        if not raw.strip():
            continue
        place = Line(path, number)
        try:
            label = msgspec.json.decode(raw, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            wanted = ", ".join(kind.__struct_fields__)
            raise StoreError(f"{place}: expected one label as a JSON object ({wanted}): {error}; mend it") from error
        if isinstance(label, PairLabel) and label.left == label.right:
            raise StoreError(f"{place}: expected two episodes to compare, got '{label.left}' twice; remove the line")
        found.append((place, label))
    return found


def append_label(path: Path, label: PairLabel) -> None:
    """Writes one label, which is on the disk when this returns; the file is as it was if it cannot be written."""
    try:
        with locked(path.with_name(f"{path.name}.lock"), LOCK_TIMEOUT_S), path.open("ab+", buffering=0) as file:
            append_bytes(file, msgspec.json.encode(label) + b"\n")
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"{path}: cannot append ({error.strerror or error}); earlier labels are intact") from error


Standing = Mapping[tuple[str, str], Mapping[str, tuple[Line, PairLabel]]]
"""By pair and rater the label that counts, and where it stands."""


def standing(labels: Sequence[tuple[Line, PairLabel]]) -> Standing:
    """The labels that count: a rater's last one of a pair that was not taken back.

    Raises StoreError naming the line of an ``undo`` that has nothing to take back.
    """
    found: dict[tuple[str, str], dict[str, list[tuple[Line, PairLabel]]]] = {}
    for place, label in labels:
        given = found.setdefault(label.pair, {}).setdefault(label.rater, [])
        if label.choice != "undo":
            given.append((place, label))
        elif given:
            given.pop()
        else:
            raise StoreError(f"{place}: expected a label of '{label.rater}' of this pair before the undo, found none")
    last = {pair: {rater: given[-1] for rater, given in of.items() if given} for pair, of in found.items()}
    return {pair: of for pair, of in last.items() if of}


def ratings(found: Standing) -> dict[object, dict[str, str]]:
    """By pair and rater which side was chosen, or ``tie``; what was skipped is no rating."""
    sides = {
        pair: {rater: _side(label, pair) for rater, (_, label) in of.items() if label.choice != "skip"}
        for pair, of in found.items()
    }
    return {pair: of for pair, of in sides.items() if of}


def _side(label: PairLabel, pair: tuple[str, str]) -> str:
    """Whichever way the pair was shown; an episode's own id would make every pair a category of its own."""
    return label.choice if label.better is None else ("first" if label.better == pair[0] else "second")
