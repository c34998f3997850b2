"""Ask the table what it likes, then serve that. Prove it sound: deedrl check-env examples/tea_house.py"""

from typing import Literal, get_args

from deedrl import Environment, Task, ToolError, tool
from deedrl.seeding import stream
from deedrl.types import Split

Tea = Literal["assam", "jasmine", "sencha"]


class TeaHouse(Environment):
    instructions = "You run a tea house. Find out what the table likes, then serve exactly that."

    def setup(self, task: Task) -> None:
        self.wish, self.served = task.initial_state, None

    @tool(read_only=True)
    def ask(self, table: int) -> str:
        """Asks a table what it would like."""
        if table != self.wish["table"]:
            raise ToolError(f"nobody sits at table {table}")
        return f"{self.wish['tea']}, brewed at {self.wish['degrees']} degrees"

    @tool(ends_episode=True)
    def serve(self, table: int, tea: Tea, degrees: int) -> str:
        """Brews a pot with water of so many degrees Celsius and brings it to a table. This ends the job."""
        self.served = {"table": table, "tea": tea, "degrees": degrees}
        return f"a pot of {tea} for table {table}"

    def verify(self, task: Task) -> bool:
        return self.served == task.goal_state

    @classmethod
    def generate_tasks(cls, split: Split, count: int, seed: int) -> list[Task]:
        draw, rows = stream(seed, split), list(get_args(Split))  # each split has a row of tables to itself
        tables = [4 * n + rows.index(split) for n in draw.sample(range(1, 10 * count + 1), count)]
        wishes = [{"table": n, "tea": draw.choice(get_args(Tea)), "degrees": draw.randrange(70, 100)} for n in tables]
        return [Task.create(f"Tea for table {w['table']}.", initial_state=w, goal_state=w, split=split) for w in wishes]
