"""What went wrong in an episode, as a short readable signature that equal failures share."""

from __future__ import annotations

import re
from collections.abc import Iterator

from deedrl.types import Record, Trajectory

ENDED = "(ended)"
"""Stands for a tool where an episode stopped, or its reference solution was over."""

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_MIXED_WITH_DIGITS = re.compile(r"\S*\d\S*")
_WORDS_KEPT = 8


class FailureSignature(Record, frozen=True):
    """How one episode failed, without anything that only its task has (ids, amounts, names)."""

    termination: str
    missing_milestones: tuple[str, ...] = ()
    used: str | None = None
    """The first tool that differs from the solution, or ``(ended)``; None when none differs or no solution is known."""
    needed: str | None = None
    """What the solution calls there, or ``(ended)``."""
    wrong_parameters: tuple[str, ...] = ()
    """``tool.parameter`` names of the first call with the right tool and other values than the solution's."""
    error: str | None = None
    """Class of the last refusal or parse error the model met."""

    def text(self) -> str:
        """The signature in words, most telling part first."""
        parts = [
            f"{self.used} instead of {self.needed}" if self.used else "",
            f"other values for {', '.join(self.wrong_parameters)}" if self.wrong_parameters else "",
            f"not reached: {', '.join(self.missing_milestones)}" if self.missing_milestones else "",
            f"error: {self.error}" if self.error else "",
            f"ended by {self.termination}",
        ]
        return "; ".join(part for part in parts if part)

    def features(self) -> frozenset[str]:
        """The parts as a set, for `similarity`."""
        found = {f"termination {self.termination}"}
        found.update(f"missing {name}" for name in self.missing_milestones)
        found.update(f"parameter {name}" for name in self.wrong_parameters)
        found.update({f"used {self.used}", f"needed {self.needed}"} if self.used else ())
        found.update({f"error {self.error}"} if self.error else ())
        return frozenset(found)


def failure_signature(trajectory: Trajectory, reference: Trajectory | None = None) -> FailureSignature:
    """Signature of a failed episode; `reference` is a solved episode of the same task, where there is one."""
    milestones = {} if trajectory.verdict is None else trajectory.verdict.milestones
    solution = _calls(trajectory) if reference is None else _calls(reference)
    used, needed, wrong_parameters = _first_difference(_calls(trajectory), solution)
    return FailureSignature(
        termination=trajectory.termination.value,
        missing_milestones=tuple(sorted(name for name, reached in milestones.items() if not reached)),
        used=used,
        needed=needed,
        wrong_parameters=wrong_parameters,
        error=next(_errors_from_last(trajectory), None),
    )


def similarity(first: FailureSignature, second: FailureSignature) -> float:
    """Jaccard similarity of two signatures' features, in [0, 1]; 1.0 when equal."""
    ours, theirs = first.features(), second.features()
    return len(ours & theirs) / len(ours | theirs)


def error_class(text: str) -> str:
    """The kind of an error message: quoted parts and anything with digits blanked, cut to its first words.

    ``"Order 'A-17' not found (3 near)"`` → ``"order … not found … near)"``.
    """
    blanked = _MIXED_WITH_DIGITS.sub("…", _QUOTED.sub("…", text.lower()))
    return " ".join(blanked.split()[:_WORDS_KEPT])


Call = tuple[str, dict[str, object]]


def _calls(trajectory: Trajectory) -> list[Call]:
    return [
        (step.action.tool_name, step.action.parameters)
        for step in trajectory.steps
        if step.action.valid and step.action.tool_name is not None
    ]


def _first_difference(calls: list[Call], solution: list[Call]) -> tuple[str | None, str | None, tuple[str, ...]]:
    """The first tool used and the tool needed instead, or else the first parameters with other values.

    Parameters are compared up to the first wrong tool only: what comes after follows from it.
    """
    wrong: tuple[str, ...] = ()
    for index in range(max(len(calls), len(solution))):
        tool, values = calls[index] if index < len(calls) else (ENDED, {})
        right_tool, right_values = solution[index] if index < len(solution) else (ENDED, {})
        if tool != right_tool:
            return tool, right_tool, wrong
        if not wrong:
            names = sorted(name for name in values.keys() | right_values.keys() if _differs(name, values, right_values))
            wrong = tuple(f"{tool}.{name}" for name in names)
    return None, None, wrong


def _differs(name: str, values: dict[str, object], others: dict[str, object]) -> bool:
    """Free text (several words) may be put in many right ways and is not compared."""
    value, other = values.get(name), others.get(name)
    return value != other and not _several_words(value) and not _several_words(other)


def _several_words(value: object) -> bool:
    return isinstance(value, str) and len(value.split()) > 2


def _errors_from_last(trajectory: Trajectory) -> Iterator[str]:
    for step in reversed(trajectory.own_steps):
        if step.tool_output is not None and not step.tool_output.ok:
            yield f"{step.action.tool_name}: {error_class(step.tool_output.text)}"
        elif step.action.error is not None:
            yield error_class(step.action.error)
