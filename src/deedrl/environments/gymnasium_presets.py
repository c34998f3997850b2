"""Names of moves and words for Gymnasium's own small games."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import gymnasium

from deedrl.environments.gymnasium_adapter import Outcome, reached_the_end

CLIFF_WIDTH = 12


def describe_lake(observation: Any, game: gymnasium.Env[Any, Any]) -> str:
    """The place and the map."""
    rows = ["".join(cell.decode() for cell in row) for row in game.get_wrapper_attr("desc")]
    row, column = divmod(int(observation), len(rows[0]))
    return f"You are in row {row}, column {column}. Map, row by row from row 0: {' '.join(rows)}."


def describe_cliff(observation: Any, _game: gymnasium.Env[Any, Any]) -> str:
    """The place."""
    row, column = divmod(int(observation), CLIFF_WIDTH)
    return f"You are in row {row}, column {column}."


def describe_blackjack(observation: Any, _game: gymnasium.Env[Any, Any]) -> str:
    """The hand, and what is seen of the dealer's."""
    hand, dealer, ace = (int(part) for part in observation)
    return f"You hold {hand} points, {'with' if ace else 'without'} an ace that counts 11; the dealer shows {dealer}."


def crossed_dry(outcome: Outcome) -> bool:
    """At the goal without a fall, which costs 100."""
    return reached_the_end(outcome) and outcome.total > -100


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "FrozenLake-v1": {
            "goal": "Walk over the lake from S to G. F is ice, H is a hole. The ice is slippery: you may slide aside.",
            "actions": ("left", "down", "right", "up"),
            "describe": describe_lake,
        },
        "CliffWalking-v1": {
            "goal": "Walk from row 3, column 0 to row 3, column 11 of a field of 4 rows (row 0 is the upper one) and "
            "12 columns. Row 3, columns 1 to 10, is a cliff: do not step there.",
            "actions": ("up", "right", "down", "left"),
            "describe": describe_cliff,
            "solved_when": crossed_dry,
            "max_steps": 30,
            "searched": True,
        },
        "Blackjack-v1": {
            "goal": "Beat the dealer at blackjack: come closer to 21 points than the dealer, and not above 21.",
            "actions": ("stick", "hit"),
            "describe": describe_blackjack,
            "max_steps": 12,
        },
    }
)
"""Fields of `Game` by Gymnasium id; any other id is put into words by its spaces alone."""
