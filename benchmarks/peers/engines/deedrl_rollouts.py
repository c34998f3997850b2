"""DeedRL's local policy and runner, the environment included."""

from __future__ import annotations

from serving import read_work, serve

import deedrl
from deedrl.benchmarks.rollouts import RolloutSettings, play
from deedrl.policies.local.model import load_model


def main() -> None:
    work = read_work()
    settings = RolloutSettings(
        model=work["model"],
        episodes=len(work["episodes"]),
        turns=(work["turns"],),
        new_tokens=work["new_tokens"],
        temperature=work["temperature"],
    )
    loaded = load_model(work["model"], dtype={"float32": "fp32", "bfloat16": "bf16"}[work["precision"]])

    def once() -> int:
        played = play(settings, loaded, work["turns"])
        return sum(len(step.completion.token_ids) for trajectory in played for step in trajectory.steps)

    serve(once, deedrl=deedrl.__version__)


if __name__ == "__main__":
    main()
