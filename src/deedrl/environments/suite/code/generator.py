"""Programs from seeds: functions of which one or two are wrong, or one is to be called otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from deedrl.environments.dealing import DIFFICULTIES, deal_tasks
from deedrl.environments.suite.code.fixtures import demonstrate
from deedrl.environments.suite.code.goal import Fix, Goal
from deedrl.environments.suite.code.pieces import KIND_OUTCOMES, VISIBLE, Piece, draw_piece
from deedrl.environments.suite.code.worlds import KNOWN, UNSEEN, World
from deedrl.types import Split, Task

OUTCOMES = {
    family: dict.fromkeys(DIFFICULTIES, outcomes)
    for family, outcomes in {**KIND_OUTCOMES, "rename": ("operator", "bound", "name")}.items()
}
"""Family → difficulty → what is right; for a rename the kind of the function that is renamed."""


def generate_tasks(
    split: Split,
    count: int,
    seed: int,
    families: Sequence[str] | None = None,
    difficulties: Sequence[str] | None = None,
) -> list[Task]:
    """`count` distinct programs, balanced over families, difficulties and outcomes; see `deal_tasks`."""
    return deal_tasks("code-repair", OUTCOMES, _draw, split, count, seed, families, difficulties)


def _draw(family: str, level: str, outcome: str, split: Split, rng: Random) -> Task:
    program = _Program(rng, UNSEEN if split == "test_unseen" else KNOWN, level)
    prompt, goal = program.renamed(outcome) if family == "rename" else program.repaired(family, outcome)
    task = Task.create(
        prompt=prompt,
        initial_state={"files": program.files, "tests": program.tests},
        goal_state=msgspec.json.decode(msgspec.json.encode(goal)),
        difficulty=level,
        family=family,
        split=split,
    )
    return msgspec.structs.replace(task, shortest_steps=len(demonstrate(task)))


@dataclass
class _Program:
    """Files with their tests in the making. Easy: one function; medium: three; hard: two files of two."""

    rng: Random
    world: World
    level: str
    files: dict[str, str] = field(default_factory=dict)
    tests: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = {"easy": (1,), "medium": (3,), "hard": (2, 2)}[self.level]
        self.paths = [f"{name}.py" for name in self.rng.sample(self.world.modules, len(count))]
        self.counts = dict(zip(self.paths, count, strict=True))
        self.free = [f"{verb}_{noun}" for verb in self.world.verbs for noun in self.world.nouns]
        self.rng.shuffle(self.free)

    def repaired(self, family: str, outcome: str) -> tuple[str, Goal]:
        """The request and the goal; one function of the first file is wrong, on hard one of each."""
        wrong = {self.paths[0]: (family, outcome)}
        if self.level == "hard":
            wrong[self.paths[1]] = self._any_kind()
        pieces, fixes = {}, []
        for path in self.paths:
            at = self.rng.randrange(self.counts[path]) if path in wrong else -1
            kinds = [wrong[path] if index == at else self._any_kind() for index in range(self.counts[path])]
            pieces[path] = [self._piece(*kind) for kind in kinds]
            lines = self._lines(pieces[path], broken=at)
            self.files[path] = "\n".join(lines) + "\n"
            if at >= 0:
                piece = pieces[path][at]
                line = lines.index(piece.wrong, lines.index(piece.right[0])) + 1
                reason, look = f"It says: {piece.text}.", ""
                if self.level == "hard":
                    reason, look = f"The tests want: {piece.text}.", f"test_{path}"
                text = piece.right[-1].strip()
                fixes.append(Fix(path=path, line=line, text=text, reasoning=reason, look=look))
        hidden = self._test_texts(pieces)
        prompt = self.rng.choice(self.world.broken).format(path=" and ".join(self.paths))
        return prompt, Goal(hidden=hidden, fixes=tuple(fixes))

    def renamed(self, kind: str) -> tuple[str, Goal]:
        """The request and the goal; medium: another function calls the one that is renamed; hard: in another file."""
        pieces = {path: [self._piece(*self._any_kind()) for _ in range(self.counts[path])] for path in self.paths}
        path, new = self.paths[0], self.free.pop()
        piece = self._piece(kind, self.rng.choice(KIND_OUTCOMES[kind]))
        pieces[path][0] = piece
        parameters = piece.right[0].partition("(")[2].rstrip("):")
        caller = self.free.pop()
        callers = [f"def {caller}({parameters}):", f"    return {piece.name}({parameters})"]
        for each in self.paths:
            self.files[each] = "\n".join(self._lines(pieces[each])) + "\n"
        where = {"easy": None, "medium": path, "hard": self.paths[-1]}[self.level]
        if where is not None:
            imported = f"from {path.removesuffix('.py')} import {piece.name}\n\n\n" if where != path else ""
            self.files[where] = imported + self.files[where] + "\n\n" + "\n".join(callers) + "\n"
        extra = {} if where is None else {where: (caller, piece)}
        goal = self._test_texts(pieces, {piece.name: new}, extra)
        fixes = [
            Fix(path=each, line=number, text=line.replace(piece.name, new).strip(), reasoning=f"Rename to {new}.")
            for each in self.paths
            for number, line in enumerate(self.files[each].splitlines(), start=1)
            if piece.name in line
        ]
        prompt = self.rng.choice(self.world.renames).format(old=piece.name, new=new, path=path)
        if where not in (None, path):
            prompt += f" {where} uses it."
        absent: dict[str, tuple[str, ...]] = dict.fromkeys(dict.fromkeys(fix.path for fix in fixes), (piece.name,))
        return prompt, Goal(hidden=goal, present={path: (new,)}, absent=absent, fixes=tuple(fixes))

    # ------------------------------------------------------------ inside

    def _any_kind(self) -> tuple[str, str]:
        kind = self.rng.choice([*KIND_OUTCOMES])
        return kind, self.rng.choice(KIND_OUTCOMES[kind])

    def _piece(self, kind: str, outcome: str) -> Piece:
        nouns = self.rng.sample(self.world.nouns, 3)
        return draw_piece(kind, outcome, self.rng, self.free.pop(), nouns, described=self.level != "hard")

    def _lines(self, pieces: Sequence[Piece], broken: int = -1) -> list[str]:
        lines: list[str] = []
        for index, piece in enumerate(pieces):
            lines += [*([""] * 2 if lines else []), *(piece.broken if index == broken else piece.right)]
        return lines

    def _test_texts(
        self,
        pieces: dict[str, list[Piece]],
        names: dict[str, str] | None = None,
        callers: dict[str, tuple[str, Piece]] | None = None,
    ) -> str:
        """Fills in the tests that are shown; gives back those that are not. `names`: old name → new one."""
        hidden: list[str] = []
        for path, group in pieces.items():
            module = path.removesuffix(".py")
            called = [((names or {}).get(piece.name, piece.name), piece) for piece in group]
            called += [(callers or {})[path]] if path in (callers or {}) else []
            shown = [_test(name, piece, piece.calls[:VISIBLE]) for name, piece in called]
            self.tests[f"test_{path}"] = f"from {module} import {', '.join(name for name, _ in called)}\n" + "".join(
                shown
            )
            hidden.append(f"from {module} import {', '.join(name for name, _ in called)}\n")
            hidden += [_test(name, piece, piece.calls[VISIBLE:], "hidden_") for name, piece in called]
        return "".join([*(line for line in hidden if line.startswith("from")), *(t for t in hidden if t[0] == "\n")])


def _test(name: str, piece: Piece, calls: Sequence[tuple[Any, ...]], prefix: str = "") -> str:
    """A test function; truth values are compared by identity, as 1 == True. No program may define an equality."""
    lines = [f"\n\ndef test_{prefix}{name}():"]
    for call in dict.fromkeys(calls):
        value = piece.value(*call)
        lines.append(
            f"    assert {name}({', '.join(map(repr, call))}) {'is' if isinstance(value, bool) else '=='} {value!r}"
        )
    return "\n".join(lines) + "\n"
