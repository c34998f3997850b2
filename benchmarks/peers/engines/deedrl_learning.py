"""DeedRL's `grpo` stage as the pipeline runs it, one step a repetition.

Validation is left to `learn.py`. What it found is passed on with each request, for the stage draws families by it.
"""

from __future__ import annotations

from collections.abc import Mapping

from learning import Clock, session_of
from serving import Requests, read_work

import deedrl
from deedrl.pipeline.grpo_stage import train_policy
from deedrl.pipeline.online import family_weights, shuffled_tasks
from deedrl.types import Task, Trajectory


def main() -> None:
    work = read_work()
    with session_of(work, work["adapter"]) as (session, stage):
        pool = session.tasks("train")
        requests = Requests(session.loaded.save, deedrl=deedrl.__version__)
        sampling = Clock()
        played: list[Trajectory] = []
        play, changed = sampling.on(session.play), session.weights_changed

        def tasks(step: int, count: int, _: Mapping[str, float]) -> list[Task]:
            """Where a step begins."""
            played.clear()
            weights = family_weights(requests.wait()["solved"], stage.failure_weight)
            return shuffled_tasks(session, stage.title, pool, step, count, weights)

        def play_and_note(*args: object, **kwargs: object) -> list[Trajectory]:
            found = play(*args, **kwargs)
            played.extend(found)
            return found

        def weights_changed(version: str) -> None:
            """Where a step ends."""
            changed(version)
            requests.answer(
                tokens=sum(trajectory.sampled_tokens for trajectory in played),
                sampling_s=sampling.take(),
                episodes=len(played),
                solved=sum(trajectory.solved is True for trajectory in played),
            )

        session.play, session.weights_changed = play_and_note, weights_changed
        train_policy(session, stage, tasks)


if __name__ == "__main__":
    main()
