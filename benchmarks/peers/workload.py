"""Writes what every engine has to do, as tokens.

    python benchmarks/peers/workload.py rollouts --turns 4 --out /tmp/rollouts.json
    python benchmarks/peers/workload.py update --out /tmp/update.json

Rollouts: what each episode begins with and what it is told between its turns, from DeedRL's own rollouts on the support
desk. Every turn samples the same number of tokens and the environment gets the demonstration's next action, so nothing
depends on what a model says. Update: a batch of made-up episodes with siblings.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from deedrl.benchmarks.long_desk import LongDesk
from deedrl.benchmarks.rollouts import RolloutSettings, play
from deedrl.benchmarks.update import UpdateSettings, made_up_batch
from deedrl.policies.local.model import embedded_model_folder, load_model
from deedrl.rollouts.prompting import PromptVariant, system_prompt


def rollouts(options: argparse.Namespace, model: dict[str, Any]) -> dict[str, Any]:
    settings = RolloutSettings(
        model=model["model"],
        dtype=options.dtype,
        episodes=options.episodes,
        turns=(options.turns,),
        new_tokens=options.new_tokens,
        temperature=options.temperature,
    )
    played = play(settings, load_model(model["model"], dtype=options.dtype), options.turns)
    episodes = [
        {
            "prompt": trajectory.steps[0].observation,
            "context": list(trajectory.steps[0].completion.prompt_ids),
            # Between a turn and the next: the end of the turn, what the tool said, the beginning of the next turn.
            "extensions": [list(step.completion.prompt_ids) for step in trajectory.steps[1:]],
            "observations": [step.observation for step in trajectory.steps[1:]],
        }
        for trajectory in played
    ]
    told = sum(len(ids) for episode in episodes for ids in (episode["context"], *episode["extensions"]))
    print(
        f"{len(episodes)} episodes of {options.turns} turns; {told} tokens told, {len(episodes[0]['context'])} at first"
    )
    return {
        "turns": options.turns,
        "new_tokens": options.new_tokens,
        "temperature": options.temperature,
        "system": _system_prompt(),
        "episodes": episodes,
    }


def update(options: argparse.Namespace, model: dict[str, Any]) -> dict[str, Any]:
    settings = UpdateSettings(tasks=options.tasks, siblings=options.siblings)
    samples = made_up_batch(settings, model["vocabulary"])
    rows = min(options.micro_batch_rows, len(samples))
    if len(samples) % rows:
        raise SystemExit(f"--micro-batch-rows: expected a divisor of the {len(samples)} episodes, got {rows}")
    print(f"{len(samples)} episodes of {len(samples[0].ids)} tokens")
    return {
        "siblings": settings.siblings,
        "rank": settings.rank,
        "micro_batch_tokens": settings.micro_batch_tokens,
        "micro_batch_rows": rows,
        "gradient_checkpointing": options.gradient_checkpointing,
        "rows": [
            {"ids": sample.ids, "action_mask": sample.action_mask, "advantage": max(sample.advantages, key=abs)}
            for sample in samples
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="a folder with a plain transformers model; default: the embedded")
    parser.add_argument("--dtype", default="auto", help="bf16, fp32 or auto: what DeedRL takes on this machine")
    kinds = parser.add_subparsers(dest="kind", required=True)
    playing = kinds.add_parser("rollouts")
    playing.add_argument("--episodes", type=int, default=64)
    playing.add_argument("--turns", type=int, default=4)
    playing.add_argument("--new-tokens", type=int, default=32)
    playing.add_argument("--temperature", type=float, default=1.0)
    learning = kinds.add_parser("update")
    learning.add_argument("--tasks", type=int, default=8)
    learning.add_argument("--siblings", type=int, default=8)
    learning.add_argument("--micro-batch-rows", type=int, default=8, help="of the peer")
    learning.add_argument("--gradient-checkpointing", action="store_true", help="of the peer")
    for one in (playing, learning):
        one.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    folder = options.model or str(embedded_model_folder())
    loaded = load_model(folder, dtype=options.dtype).model
    model = {
        "model": folder,
        "precision": str(loaded.dtype).removeprefix("torch."),
        "vocabulary": int(loaded.get_output_embeddings().weight.shape[0]),
    }
    work = {"rollouts": rollouts, "update": update}[options.kind](options, model)
    options.out.write_text(json.dumps({"kind": options.kind, **model, **work}), encoding="utf-8")


def _system_prompt() -> str:
    desk = LongDesk()
    try:
        return system_prompt(desk.instructions, desk.toolbox.schemas(), PromptVariant())
    finally:
        desk.close()


if __name__ == "__main__":
    main()
