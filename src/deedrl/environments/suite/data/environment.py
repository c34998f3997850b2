"""The data desk as an environment: SQL over a read-only database, a search over log files, one answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, ClassVar

from deedrl.environments.environment import Environment
from deedrl.environments.fixtures import Fixture
from deedrl.environments.suite.data import generator
from deedrl.environments.suite.data.fixtures import fixtures
from deedrl.environments.suite.data.goal import read_goal
from deedrl.environments.suite.data.source import Source
from deedrl.environments.suite.data.verifier import NOTE, judge
from deedrl.errors import ToolError, suggest
from deedrl.rewards.answers import LONGEST_ANSWER
from deedrl.tools.tool import tool
from deedrl.types import Action, Split, Task, Verdict

MOST_ROWS = 20
MOST_CHARACTERS = 1500
"""Of an observation."""


class DataDesk(Environment):
    """A question over a database or log files: the prompt asks, an episode ends with the answer.

    What each call has read is written to a log that no tool can read or change: the verifier takes from it whether the
    answer rests on the data.
    """

    instructions = (
        "You answer questions about data. See a table's columns with describe, then use one SELECT with query. "
        "For a log file use search_log. If the question names a note, read it first. "
        "Then call answer with the value alone, copied from the result. If nothing fits, answer none."
    )
    max_steps: ClassVar[int] = 10
    blocking: ClassVar[bool] = False

    def __init__(self) -> None:
        self.source = Source()

    def setup(self, task: Task) -> None:
        read_goal(task)
        self.source.renew(task)
        self.read: set[str] = set()
        self.submitted: str | None = None

    def teardown(self) -> None:
        self.source.end()

    def close(self) -> None:
        super().close()
        self.source.close()

    def verify(self, task: Task) -> Verdict:
        return judge(read_goal(task), self.submitted, self.read, self.source.unchanged())

    def demonstrate(self, task: Task) -> Sequence[Action]:
        return read_goal(task).actions()

    def state_hash(self) -> str:
        """Hash over the answer, what was read, and the data."""
        state = json.dumps([self.submitted, sorted(self.read), self.source.data.note])
        return hashlib.sha256(state.encode() + self.source.fingerprint).hexdigest()[:16]

    @classmethod
    def fixtures(cls, task: Task) -> Sequence[Fixture]:
        return fixtures(task)

    @classmethod
    def gold_strings(cls, task: Task) -> list[str]:
        """The answer, if it is long enough not to occur by chance."""
        value = read_goal(task).answer.value
        return [str(value)] if isinstance(value, str | int | float) and len(str(value)) >= 6 else []

    @classmethod
    def generate_tasks(
        cls,
        split: Split,
        count: int,
        seed: int,
        families: Sequence[str] | None = None,
        difficulties: Sequence[str] | None = None,
    ) -> list[Task]:
        """`count` tasks, balanced over families and difficulties (all, or those named); see `generator`."""
        return generator.generate_tasks(split, count, seed, families, difficulties)

    # ------------------------------------------------------------ looking

    @tool(read_only=True)
    def tables(self) -> str:
        """Lists tables and log files."""
        data = self.source.data
        return f"Tables: {', '.join(data.tables) or 'none'}. Log files: {', '.join(data.logs) or 'none'}."

    @tool(read_only=True)
    def describe(self, table: str) -> str:
        """Shows a table's columns."""
        tables = self.source.data.tables
        name = table.strip()
        if name not in tables:
            raise ToolError(
                f"there is no table '{name[:60]}'{suggest(name[:60], tables)}; there are: {', '.join(tables) or 'none'}"
            )
        return f"{name}: {', '.join(tables[name].columns)}. {len(tables[name].rows)} rows."

    @tool(read_only=True)
    def query(self, sql: str) -> str:
        """Runs one SELECT."""
        result = self.source.database.query(sql, MOST_ROWS)
        self.read.update(f"{table}.{column}" for table, column in result.read)
        if not result.rows:
            return f"No rows. Columns: {', '.join(result.columns)[:MOST_CHARACTERS]}."
        if len(result.rows) == 1 and len(result.columns) == 1:
            return _cell(result.rows[0][0])[:MOST_CHARACTERS] or "(an empty text)"
        lines = [" | ".join(result.columns), *(" | ".join(map(_cell, row)) for row in result.rows)]
        return _cut(lines, f"(only the first {MOST_ROWS} rows)" if result.more else "")

    @tool(read_only=True)
    def search_log(self, file: str, text: str, limit: int = 2) -> str:
        """Counts the lines of a log file that contain a text; shows the first ones.

        Args:
            limit: How many lines to show.
        """
        if not text:
            raise ToolError("the text is empty; expected what the lines should contain, e.g. INFO")
        name, all_lines = self.source.log_lines(file.strip())
        lines = [line for line in all_lines if text in line]
        self.read.add(f"log:{name}")
        head = f"{len(lines)} lines contain {text[:60]}."
        shown = lines[: min(max(limit, 0), MOST_ROWS)]
        return _cut([head, *shown], "") if shown else head

    @tool(read_only=True)
    def note(self) -> str:
        """Reads the note on the data."""
        self.read.add(NOTE)
        return self.source.data.note or "There is no note."

    # ------------------------------------------------------------ the end

    @tool(ends_episode=True)
    def answer(self, value: str) -> str:
        """Gives the answer and ends."""
        if not value.strip():
            raise ToolError("the answer is empty; expected a value, or none if there is nothing")
        if len(value) > LONGEST_ANSWER:
            raise ToolError(f"the answer has {len(value)} characters; expected the value alone")
        self.submitted = value
        return "Answer stored."


def _cell(value: Any) -> str:
    return "NULL" if value is None else value.hex() if isinstance(value, bytes) else str(value)


def _cut(lines: Sequence[str], note: str) -> str:
    """The lines that fit into an observation, whole; says so if some do not."""
    kept: list[str] = []
    size = 0
    for line in lines:
        size += len(line) + 1
        if kept and size > MOST_CHARACTERS:
            return "\n".join([*kept, "(cut: too long; ask for less)"])
        kept.append(line[:MOST_CHARACTERS])
    return "\n".join([*kept, note] if note else kept)
