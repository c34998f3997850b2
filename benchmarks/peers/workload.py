"""Writes what every engine has to do: the tokens each episode begins with and those it is told between its turns.

    python benchmarks/peers/workload.py --turns 4 --out /tmp/workload.json

They come from DeedRL's own rollouts on the support desk, in which every turn samples the same number of tokens and the
environment gets the demonstration's next action, so they do not depend on what a model says.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from deedrl.benchmarks.rollouts import RolloutSettings, play
from deedrl.policies.local.model import embedded_model_folder, load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="a folder with a plain transformers model; default: the embedded")
    parser.add_argument("--dtype", default="auto", help="bf16, fp32 or auto: what DeedRL takes on this machine")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    folder = options.model or str(embedded_model_folder())
    settings = RolloutSettings(
        model=folder,
        dtype=options.dtype,
        episodes=options.episodes,
        turns=(options.turns,),
        new_tokens=options.new_tokens,
        temperature=options.temperature,
    )
    loaded = load_model(folder, dtype=options.dtype)
    episodes = [
        {
            "prompt": trajectory.steps[0].observation,
            "context": list(trajectory.steps[0].completion.prompt_ids),
            # Between a turn and the next: the end of the turn, what the tool said, the beginning of the next turn.
            "extensions": [list(step.completion.prompt_ids) for step in trajectory.steps[1:]],
            "observations": [step.observation for step in trajectory.steps[1:]],
        }
        for trajectory in play(settings, loaded, options.turns)
    ]
    work = {
        "model": folder,
        "precision": str(loaded.model.dtype).removeprefix("torch."),
        "turns": options.turns,
        "new_tokens": options.new_tokens,
        "temperature": options.temperature,
        "system": _system_prompt(),
        "episodes": episodes,
    }
    options.out.write_text(json.dumps(work), encoding="utf-8")
    told = sum(len(ids) for episode in episodes for ids in (episode["context"], *episode["extensions"]))
    print(
        f"{len(episodes)} episodes of {options.turns} turns; {told} tokens told, {len(episodes[0]['context'])} at first"
    )


def _system_prompt() -> str:
    from deedrl.benchmarks.long_desk import LongDesk
    from deedrl.rollouts.prompting import PromptVariant, system_prompt

    desk = LongDesk()
    try:
        return system_prompt(desk.instructions, desk.toolbox.schemas(), PromptVariant())
    finally:
        desk.close()


if __name__ == "__main__":
    main()
