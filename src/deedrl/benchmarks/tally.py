"""The smallest job with state: its steps cost next to nothing, so that what a run costs is the runner's own."""

from __future__ import annotations

import random
import threading

from deedrl.benchmarks.episodes import made_up_completion
from deedrl.environments.environment import Environment
from deedrl.policies.policy import CompletionRequest, action_text
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.tools.tool import tool
from deedrl.types import Action, Completion, Task


class Tally(Environment):
    """Count up to a number, then say that it is reached. Runs in the event loop."""

    instructions = "You keep a tally. Add until it is as high as the task says, then finish."
    max_steps = 1000
    blocking = False

    def setup(self, task: Task) -> None:
        self.count = 0

    def verify(self, task: Task) -> bool:
        return bool(self.count == task.goal_state["count"])

    def state_hash(self) -> str:
        return str(self.count)

    @tool
    def add(self, number: int) -> str:
        """Adds a number to the tally."""
        self.count += number
        return f"the tally is {self.count}"

    @tool(ends_episode=True)
    def finish(self) -> str:
        """Ends the job."""
        return "finished"


class ThreadedTally(Tally):
    """The same on a thread of its own, as an environment that may block."""

    blocking = True


def tally_specs(episodes: int, steps: int) -> list[EpisodeSpec]:
    """`episodes` siblings of one task that takes `steps` steps, the last of which finishes."""
    task = Task.create(f"Count to {steps - 1}.", goal_state={"count": steps - 1}, shortest_steps=steps)
    return [EpisodeSpec(task=task, episode_id=f"tally-{index}", seed=index) for index in range(episodes)]


def tally_script(steps: int) -> list[Completion]:
    """What solves such a task, with made-up tokens."""
    add = Action(tool_name="add", parameters={"number": 1}, reasoning="One more is needed.")
    finish = Action(tool_name="finish", reasoning="That is the number.")
    moves = [*[add] * (steps - 1), finish]
    return [made_up_completion(action_text(move), random.Random(turn)) for turn, move in enumerate(moves)]


class Watch:
    """Plays the script and counts: episodes in flight, and threads beyond those that were there before."""

    def __init__(self, script: list[Completion]) -> None:
        self._script = script
        self._threads_before = threading.active_count()
        self.in_flight = 0
        self.peak_in_flight = 0
        self.peak_threads = 0

    def line(self, request: CompletionRequest) -> Completion:
        """The script's next completion."""
        turn = request.turn
        if turn == 0:
            self.in_flight += 1
            self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
            self.peak_threads = max(self.peak_threads, threading.active_count() - self._threads_before)
        return self._script[turn]

    def ended(self) -> None:
        """An episode is over."""
        self.in_flight -= 1
