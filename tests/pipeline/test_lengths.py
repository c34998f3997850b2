"""How long episodes are, read off an environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from deedrl.pipeline.cost import estimate
from deedrl.pipeline.lengths import episode_lengths, text_tokens
from deedrl.pipeline.recipe import Recipe, recipe_from
from deedrl.planning.load import TYPICAL
from deedrl.planning.machine import ASSUMED_RANGE, GIB, MEASURED_RANGE, Machine

XEON = Machine(cores=2, memory_bytes=23 * GIB, fast_bf16=True)
QUIET = '''
from deedrl import Environment, Task, tool

class Quiet(Environment):
    instructions = "Say yes."

    @tool(ends_episode=True)
    def say(self, word: str) -> str:
        """Says a word."""
        return word

    def verify(self, task):
        return True

    @classmethod
    def generate_tasks(cls, split, count, seed):
        return [Task.create(prompt=f"Number {n}?", split=split) for n in range(count)]
'''


def recipe(environment: object = "deedrl/SupportDesk-v0") -> Recipe:
    return recipe_from({"name": "tiny", "environment": environment, "stages": [{"stage": "baseline"}]})


@pytest.mark.parametrize(
    ("environment", "prefix", "first", "turn", "told"),
    [
        # SmolLM2's tokens in episodes of taught policies, 2026-12-01: shared prefix, prefix and task, turn, told.
        ({"ref": "deedrl/SupportDesk-v0", "difficulties": ["easy"]}, 324, 352, 42.7, 36),
        ("deedrl/CustomerAnswers-v0", 61, 113, 25.6, 0),
    ],
)
def test_lengths_are_about_those_of_the_tokenizer(
    environment: object, prefix: float, first: float, turn: float, told: float
) -> None:
    lengths, assumed = episode_lengths(recipe(environment))
    assert assumed == ()
    assert lengths.prefix == pytest.approx(prefix, rel=0.15)
    assert lengths.prefix + lengths.task == pytest.approx(first, rel=0.15)
    assert lengths.turn == pytest.approx(turn, rel=0.15)
    assert lengths.observation == pytest.approx(told, rel=0.15)


def test_letters_of_other_scripts_count_one_by_one() -> None:
    assert text_tokens("Wann kommt es?") == text_tokens("好久不见")
    assert text_tokens("") == 0


def test_without_demonstrations_turns_are_assumed_and_prompts_are_not(tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text(QUIET)
    quiet = recipe(f"{tmp_path / 'quiet.py'}:Quiet")
    lengths, assumed = episode_lengths(quiet)
    assert lengths.prefix < TYPICAL.prefix / 2
    assert (lengths.turns, lengths.turn, lengths.observation) == (TYPICAL.turns, TYPICAL.turn, TYPICAL.observation)
    assert "turns are assumed" in assumed[0]
    assert "demonstrate" in assumed[0]
    cost = estimate(quiet, XEON)
    assert cost.factor == ASSUMED_RANGE > MEASURED_RANGE
    assert assumed[0] in cost.notes


def test_an_environment_that_is_not_there_leaves_a_typical_job() -> None:
    lengths, assumed = episode_lengths(recipe("nowhere.at_all:Class"))
    assert lengths == TYPICAL
    assert "no module 'nowhere'" in assumed[0]
