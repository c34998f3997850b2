"""Small tables of sampled trajectories: the same few rows at step 5 and at step 5000, so that logging stays cheap."""

from __future__ import annotations

from collections.abc import Sequence

from deedrl.redaction import mask_keys
from deedrl.seeding import stream
from deedrl.tracking.sink import Cell, Row
from deedrl.types import Trajectory

MAX_ROWS = 8
"""Rows of one table at one step (case I06)."""
MAX_CELL_CHARS = 2000


def bounded_rows(rows: Sequence[Row], *, name: str, step: int) -> list[dict[str, Cell]]:
    """At most `MAX_ROWS` of `rows`, in their order, with equal columns, cut cells and no keys in them.

    Which rows is drawn at random, but the same table at the same step always gives the same ones.
    """
    count = min(len(rows), MAX_ROWS)
    picked = [rows[index] for index in sorted(stream(0, "table", name, step).sample(range(len(rows)), count))]
    columns = list(dict.fromkeys(column for row in picked for column in row))
    return [{column: _bounded(row.get(column)) for column in columns} for row in picked]


def _bounded(cell: Cell) -> Cell:
    if not isinstance(cell, str):
        return cell
    # Masked before it is cut, for half a key is a leak that no longer has a key's shape.
    cell = mask_keys(cell.encode("utf-8", "replace").decode())  # lone surrogates break most sinks
    if len(cell) > MAX_CELL_CHARS:
        cell = f"{cell[:MAX_CELL_CHARS]}… ({len(cell) - MAX_CELL_CHARS} more characters)"
    return cell


def trajectory_row(trajectory: Trajectory) -> dict[str, Cell]:
    """One trajectory as a row: what it was, how it ended, and its transcript."""
    return {
        "episode": trajectory.episode_id,
        "task": trajectory.task_id,
        "family": trajectory.family,
        "reward": trajectory.reward,
        "solved": None if trajectory.solved is None else int(trajectory.solved),
        "termination": str(trajectory.termination),
        "steps": len(trajectory.steps),
        "transcript": _transcript(trajectory),
    }


def _transcript(trajectory: Trajectory) -> str:
    """Turn by turn; stops when there is more than a cell shows, so that long episodes cost no more than short ones."""
    parts: list[str] = []
    length = 0
    for step in trajectory.steps:
        answer = step.completion.text
        parts += [f"> {step.observation}", answer] if step.observation else [answer]
        length += len(step.observation) + len(answer)
        if length > MAX_CELL_CHARS:
            break
    return "\n".join(parts)
