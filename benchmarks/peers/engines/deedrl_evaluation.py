"""Plays the validation tasks with the adapter that a request names: the pipeline's own validation, for every engine."""

from __future__ import annotations

from learning import session_of
from serving import Requests, read_work

import deedrl
from deedrl.pipeline.validation import validate


def main() -> None:
    work = read_work()
    requests = Requests(deedrl=deedrl.__version__)
    while True:
        request = requests.wait()
        with session_of(work, request["adapter"]) as (session, stage):
            metrics = validate(session, stage.title, request["step"], stage.validation_tasks)
        requests.answer(
            tokens=0,
            completion=metrics.completion_rate.value,
            episodes=metrics.completion_rate.denominator,
            solved={family: group.completion_rate.value for family, group in metrics.by_family.items()},
        )


if __name__ == "__main__":
    main()
