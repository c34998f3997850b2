"""Games of Gymnasium as jobs for a language model: ``deedrl check-env examples/gymnasium_games.py:FrozenLake``."""

from __future__ import annotations

from typing import Any

from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from deedrl.environments.gymnasium_adapter import Game, GymnasiumGame, adapt
from deedrl.environments.gymnasium_presets import PRESETS, describe_lake


def own_map(seed: int) -> dict[str, Any]:
    """A lake of its own for each task, with a way to the goal, and no slipping."""
    return {"desc": generate_random_map(size=4, p=0.7, seed=seed), "is_slippery": False}


class FrozenLake(
    GymnasiumGame,
    game=Game(
        "FrozenLake-v1",
        goal="Walk over the lake from S to G. F is ice, H is a hole.",
        actions=("left", "down", "right", "up"),
        options=own_map,
        describe=describe_lake,
        max_steps=20,
        searched=True,
    ),
):
    """Every task is another map."""


CliffWalking = adapt("CliffWalking-v1", **PRESETS["CliffWalking-v1"])
Blackjack = adapt("Blackjack-v1", **PRESETS["Blackjack-v1"])
