"""Code repair as an environment: five tools over the files of a small program, and pytest in a sandbox."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import ClassVar

from deedrl.environments.environment import Environment
from deedrl.environments.fixtures import Fixture
from deedrl.environments.suite.code import generator
from deedrl.environments.suite.code.fixtures import demonstrate, fixtures
from deedrl.environments.suite.code.goal import read_goal
from deedrl.environments.suite.code.runner import TestRunner, shared_runner
from deedrl.environments.suite.code.verifier import judge, not_allowed, run_tests
from deedrl.errors import ToolError, suggest
from deedrl.tools.tool import tool
from deedrl.types import Action, Split, Task, Verdict

LONGEST_LINE, LONGEST_FILE = 300, 10_000


class CodeRepair(Environment):
    """A program with a bug, or with a name to be changed: the prompt says which file, `submit` ends the episode.

    The program's files are written into a sandbox for each test run, beside pristine tests; nothing else that an agent
    does reaches the tests.
    """

    instructions = (
        "You repair Python programs. Read the file, find the line that does not do what the text in quotes says, and "
        "replace that one line. To rename, replace every line that uses the old name. Then submit. "
        "Tests cannot be changed."
    )
    max_steps: ClassVar[int] = 14

    def setup(self, task: Task) -> None:
        self.files: dict[str, str] = task.initial_state["files"]
        self.tests: dict[str, str] = task.initial_state["tests"]
        self.log: list[tuple[str, str]] = []
        self.submitted = False
        self.verdicts: dict[str, Verdict] = {}

    def verify(self, task: Task) -> Verdict:
        key = json.dumps([self.files, self.log, self.submitted])
        if key not in self.verdicts:
            self.verdicts[key] = judge(
                self._runner(),
                self.files,
                task.initial_state["tests"],
                read_goal(task),
                log=self.log,
                changed=self.files != task.initial_state["files"],
                submitted=self.submitted,
            )
        return self.verdicts[key]

    def demonstrate(self, task: Task) -> Sequence[Action]:
        return demonstrate(task)

    def state_hash(self) -> str:
        """Hash over the program's files and whether it was handed in."""
        return hashlib.sha256(json.dumps([self.files, self.submitted], sort_keys=True).encode()).hexdigest()[:16]

    @classmethod
    def fixtures(cls, task: Task) -> Sequence[Fixture]:
        return fixtures(task)

    @classmethod
    def gold_strings(cls, task: Task) -> list[str]:
        """The lines of the right program that are not in the one given."""
        given = "\n".join(task.initial_state["files"].values())
        return [fix.text for fix in read_goal(task).fixes if fix.text not in given]

    @classmethod
    def generate_tasks(
        cls,
        split: Split,
        count: int,
        seed: int,
        families: Sequence[str] | None = None,
        difficulties: Sequence[str] | None = None,
    ) -> list[Task]:
        """`count` programs, balanced over families and difficulties (all, or those named); see `generator`."""
        return generator.generate_tasks(split, count, seed, families, difficulties)

    # ------------------------------------------------------------ looking

    @tool(read_only=True)
    def read_file(self, path: str) -> str:
        """Shows a file with line numbers."""
        name = path.strip()
        text = self.files[self._known(name)] if name not in self.tests else self.tests[name]
        self.log.append(("read", name))
        return "\n".join(f"{number} {line}" for number, line in enumerate(text.splitlines(), start=1))

    @tool(read_only=True, timeout_s=60.0)
    def run_tests(self) -> str:
        """Runs the tests and shows the first failures."""
        self._check_allowed()
        result = run_tests(self._runner(), self.files, self.tests)
        if not result.passed and (broken := [name for name, _ in result.failed if name in self.files]):
            return f"The tests cannot start: {broken[0]} is no Python."
        if result.stopped is not None:
            return "The tests did not come to an end: the program takes too long or too much memory."
        if result.ok:
            return f"All {len(result.passed)} tests pass."
        shown = "; ".join(f"{name}: {reason}" for name, reason in result.failed[:2])
        return f"{len(result.failed)} of {len(result.failed) + len(result.passed)} tests fail. {shown}"

    # ------------------------------------------------------------ changing

    @tool
    def replace_line(self, path: str, line: int, text: str) -> str:
        """Replaces one line of a file; the indentation stays."""
        self._still_open()
        name = self._known(path.strip())
        lines = self.files[name].splitlines()
        if not 1 <= line <= len(lines):
            raise ToolError(f"{name} has no line {line}; expected 1 to {len(lines)}")
        if "\n" in text or "\r" in text or len(text) > LONGEST_LINE:
            raise ToolError(f"expected one line of at most {LONGEST_LINE} characters")
        old = lines[line - 1]
        lines[line - 1] = old[: len(old) - len(old.lstrip())] + text.strip()
        self.log.append(("change", name))
        self.files[name] = "\n".join(lines) + "\n"
        return f"{line} {lines[line - 1]}"

    @tool
    def write_file(self, path: str, text: str) -> str:
        """Replaces a whole file."""
        self._still_open()
        name = self._known(path.strip())
        if len(text) > LONGEST_FILE:
            raise ToolError(f"expected a text of at most {LONGEST_FILE} characters, got {len(text)}")
        self.log.append(("change", name))
        self.files[name] = text if text.endswith("\n") else text + "\n"
        return f"{name} has {len(text.splitlines())} lines now."

    @tool(ends_episode=True, timeout_s=60.0)
    def submit(self) -> str:
        """Hands the program in."""
        self._still_open()
        self.submitted = True
        return "Handed in."

    # ------------------------------------------------------------ inside

    def _runner(self) -> TestRunner:
        return shared_runner()

    def _known(self, name: str) -> str:
        if name in self.tests:
            raise ToolError(f"{name} is a test; expected a file of the program, which has {', '.join(self.files)}")
        if name not in self.files:
            raise ToolError(
                f"there is no file '{name[:60]}'{suggest(name, self.files)}; there is {', '.join(self.files)}"
            )
        return name

    def _still_open(self) -> None:
        if self.submitted:
            raise ToolError("the program is handed in; nothing can be changed any more")

    def _check_allowed(self) -> None:
        if found := not_allowed(self.files):
            raise ToolError(f"the program is not run: {found[0]}")
