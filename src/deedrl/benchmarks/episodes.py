"""Episodes that nobody played: of the size and shape of real ones, the same at every run."""

from __future__ import annotations

import random

from deedrl.policies.policy import action_text
from deedrl.types import (
    Action,
    Completion,
    Provenance,
    Record,
    RewardBreakdown,
    Step,
    TerminationReason,
    TermScore,
    ToolOutput,
    Trajectory,
    Verdict,
)

VOCABULARY = 50_000
CHARS_A_TOKEN = 4
_WORDS = ("the", "parcel", "for", "order", "4821", "was", "lost", "on", "Monday", "so", "refund", "24.95", "at", "once")


class EpisodeShape(Record, frozen=True):
    """How long an episode is."""

    steps: int
    prompt_tokens: int
    """Of the first turn: system prompt, tools and task."""
    answer_chars: int
    """Of what the policy writes in a turn, beside the frame of an action."""
    result_chars: int
    """Of what a tool gives back."""


SHORT = EpisodeShape(steps=3, prompt_tokens=350, answer_chars=60, result_chars=120)
"""Like the support desk with a small model."""
LONG = EpisodeShape(steps=20, prompt_tokens=1500, answer_chars=600, result_chars=1500)
"""Like an agent that works with files."""


def made_up_completion(text: str, rng: random.Random, prompt_tokens: int = 0, *, extends: bool = False) -> Completion:
    """`text` with a token for every four characters, after `prompt_tokens` tokens of context."""
    tokens = max(1, len(text) // CHARS_A_TOKEN)
    return Completion(
        text=text,
        token_ids=tuple(rng.randrange(VOCABULARY) for _ in range(tokens)),
        logprobs=tuple(-(rng.random() ** 6) for _ in range(tokens)),  # most are near 0 and have many digits
        prompt_ids=tuple(rng.randrange(VOCABULARY) for _ in range(prompt_tokens)),
        extends_previous=extends,
        policy_version="benchmark",
    )


def made_up_trajectory(index: int, shape: EpisodeShape) -> Trajectory:
    """The episode number `index` of this shape, solved and scored; equal for equal arguments."""
    rng = random.Random(index)
    return Trajectory(
        episode_id=f"benchmark-{index}",
        task_id=f"{rng.getrandbits(64):016x}",
        family="window",
        steps=tuple(_step(turn, shape, rng) for turn in range(shape.steps)),
        termination=TerminationReason.GOAL,
        verdict=Verdict(solved=True, progress=1.0, milestones={"looked_up_order": True, "right_decision": True}),
        breakdown=RewardBreakdown(
            total=0.9625,
            terms={
                name: TermScore(value=value, weight=weight)
                for name, value, weight in (("outcome", 1.0, 0.65), ("process", 0.85, 0.25), ("format", 1.0, 0.1))
            },
        ),
        provenance=Provenance(stage="benchmark", seed=rng.getrandbits(62), tool_versions={"write_note": "1"}),
        duration_s=rng.random(),
        shortest_steps=shape.steps,
    )


def _step(turn: int, shape: EpisodeShape, rng: random.Random) -> Step:
    action = Action(
        tool_name="write_note",
        parameters={"order_id": str(rng.randrange(1000, 10_000)), "text": _words(shape.answer_chars // 2, rng)},
        reasoning=_words(shape.answer_chars // 2, rng),
    )
    context = shape.prompt_tokens if turn == 0 else shape.result_chars // CHARS_A_TOKEN
    return Step(
        index=turn,
        observation=_words(shape.result_chars, rng),
        completion=made_up_completion(action_text(action), rng, context, extends=turn > 0),
        action=action,
        tool_output=ToolOutput(text=_words(shape.result_chars, rng), duration_s=rng.random() / 1000),
        reward=0.0,
        state_hash=f"{rng.getrandbits(64):016x}",
    )


def _words(chars: int, rng: random.Random) -> str:
    """Words up to about so many characters."""
    return " ".join(rng.choices(_WORDS, k=max(1, chars // 5)))
