"""A job small enough for a random model to learn: copy the letter. Its rubric also pays for luck, so groups differ."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

from deedrl import Action, Environment, Rubric, Task, Trajectory, Verdict, tool
from deedrl.rewards.rubric import WeightedTerm, ungated
from deedrl.rewards.terms.outcome import Outcome
from deedrl.types import Split


class Chatter:
    """Share of the letter "e" in what was said."""

    name = "chatter"

    def score(self, trajectory: Trajectory) -> float:
        text = "".join(step.completion.text for step in trajectory.steps)
        return text.count("e") / max(len(text), 1)


class Letters(Environment):
    blocking = False
    instructions = "Call choose with the letter."

    def setup(self, task: Task) -> None:
        self.chosen = ""

    @tool(ends_episode=True)
    def choose(self, letter: Literal["A", "B"]) -> str:
        """Chooses a letter."""
        self.chosen = letter
        return "done"

    def verify(self, task: Task) -> Verdict:
        solved = self.chosen == task.goal_state["letter"]
        return Verdict(solved=solved, progress=float(solved))

    def demonstrate(self, task: Task) -> Sequence[Action]:
        return [Action(tool_name="choose", parameters={"letter": task.goal_state["letter"]}, reasoning="I choose.")]

    @classmethod
    def generate_tasks(cls, split: Split, count: int, seed: int) -> list[Task]:
        letters = random.Random(seed).choices("AB", k=count)
        return [
            Task.create(
                f"Take {letter}.",
                # Never shown: it tells tasks of equal prompts apart.
                initial_state={"split": split, "number": number},
                goal_state={"letter": letter},
                split=split,
                shortest_steps=1,
            )
            for number, letter in enumerate(letters)
        ]

    @classmethod
    def rubric(cls) -> Rubric:
        return Rubric((WeightedTerm(Outcome(), 0.7, gate=ungated), WeightedTerm(Chatter(), 0.3, gate=ungated)))
