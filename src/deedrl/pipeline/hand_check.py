"""Preference pairs as a page that people can read: both episodes side by side, turn by turn."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from deedrl.redaction import mask_keys, strip_ansi
from deedrl.training.preferences import PreferencePair, source_of
from deedrl.types import Step, Trajectory


def hand_check_text(pairs: Sequence[PreferencePair], episodes: Mapping[str, Trajectory]) -> str:
    """Markdown with a table a pair; `episodes` holds both sides by id. Texts are shown as text, never as markup."""
    question = "Is the chosen side the better one, and for a reason worth learning?"
    return f"# {len(pairs)} pairs to check by hand\n\n{question}\n" + "".join(
        _pair(number, pair, episodes) for number, pair in enumerate(pairs, start=1)
    )


def _pair(number: int, pair: PreferencePair, episodes: Mapping[str, Trajectory]) -> str:
    chosen, rejected = episodes[pair.chosen], episodes[pair.rejected]
    prompt = chosen.steps[0].observation if chosen.steps else ""
    rows = [
        ("episode", _cell(pair.chosen), _cell(pair.rejected)),
        ("outcome", _outcome(chosen, pair.chosen_tokens), _outcome(rejected, pair.rejected_tokens)),
        *(
            (str(turn), _turn(better), _turn(worse))
            for turn, (better, worse) in enumerate(zip_longest(chosen.steps, rejected.steps), start=1)
        ),
    ]
    table = "".join(f"| {title} | {better} | {worse} |\n" for title, better, worse in rows)
    return (
        f"\n## {number}. {pair.kind}, margin {pair.margin:.3f}\n\nTask {pair.task_id}: {_cell(prompt)}\n\n"
        f"| | chosen | rejected |\n|---|---|---|\n{table}"
    )


def _outcome(trajectory: Trajectory, tokens: int) -> str:
    verdict = "solved" if trajectory.solved else "failed"
    return (
        f"{verdict} ({trajectory.termination.value}), reward {trajectory.reward or 0.0:.3f}, {len(trajectory.steps)} "
        f"steps, {tokens} action tokens, {source_of(trajectory)}"
    )


def _turn(step: Step | None) -> str:
    if step is None:
        return ""
    heard = step.tool_output.text if step.tool_output is not None else step.action.error or ""
    return f"{_cell(step.completion.text)}<br>→ {_cell(heard)}" if heard else _cell(step.completion.text)


def _cell(text: str) -> str:
    """One line of a Markdown table that shows `text` as it is; secrets are hidden."""
    plain = html.escape(mask_keys(strip_ansi(text)), quote=False)
    for mark in "\\`*_[]|~#":
        plain = plain.replace(mark, f"\\{mark}")
    return plain.replace("\n", "<br>")
