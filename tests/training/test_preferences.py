"""Which episodes pairs are made of, and which pairs."""

from __future__ import annotations

import pytest

from deedrl.training.preferences import (
    candidates,
    efficiency_pairs,
    outcome_pairs,
    pairs_from,
    triple_pairs,
)
from deedrl.training.samples import samples_from
from deedrl.types import Failure, Provenance, Verdict

ANY = ("policy", "demonstration")


@pytest.fixture
def episode(kit):
    """An episode by name, outcome, reward and number of steps; its tokens are its own."""

    def made(name, solved=True, reward=1.0, steps=1, prompt=(5, 6), **fields):
        body = 10 + sum(map(ord, name))
        turns = [(prompt if turn == 0 else (7,), (body, 100 + turn)) for turn in range(steps)]
        verdict = None if solved is None else Verdict(solved=solved, progress=float(solved))
        return kit.trajectory(name, reward, turns, verdict=verdict, **fields)

    return made


def found(*trajectories, sources=ANY, max_tokens=100):
    return candidates(trajectories, samples_from, sources=sources, max_tokens=max_tokens)


def sides(pairs):
    return [(pair.chosen, pair.rejected) for pair in pairs]


# ---------------------------------------------------------------- candidates


def test_every_reason_to_leave_an_episode_out_is_counted_and_none_of_them_gets_through(episode):
    trouble = Failure(kind="OSError", phase="step", message="")
    kept, counts = found(
        episode("b"),
        episode("a", solved=False, reward=0.0),
        episode("a", solved=True),
        episode("held", split="validation"),
        episode("broken", solved=None, reward=None, failure=trouble),
        episode("unjudged", solved=None),
        episode("unscored", reward=None),
        episode("constrained", guided=True),
        episode("shown", provenance=Provenance(source="demonstration")),
        episode("silent", steps=0),
        episode("long", steps=60),
    )
    assert [candidate.episode_id for candidate in kept] == ["a", "b", "shown"]
    assert [candidate.solved for candidate in kept] == [False, True, True]
    reasons = ("repeated", "other_split", "errored", "unverified", "unscored", "other_source")
    assert [getattr(counts, name) for name in (*reasons, "without_tokens", "too_long")] == [1] * 8
    assert (counts.read, counts.solved, counts.failed, counts.usable) == (11, 2, 1, 3)


def test_constrained_sampling_is_told_by_the_turns_and_let_in_by_name_alone(episode):
    """Provenance says "policy" here, as of an episode of which one turn was guided."""
    guided = episode("g", guided=True)
    assert found(guided)[1].other_source == 1
    assert [c.episode_id for c in found(guided, sources=("guided",))[0]] == ["g"]


def test_an_episode_cut_into_two_renderings_keeps_both_samples(kit):
    turns = [((5, 6), (7, 8)), ((1,), (9,)), ((5, 6, 1), (2, 3, 4))]
    split = kit.trajectory("s", 1.0, turns, breaks=(2,), verdict=Verdict(solved=True, progress=1.0))
    [candidate], _ = found(split)
    assert len(candidate.samples) == 2
    assert candidate.actions == (7, 8, 9, 2, 3, 4)
    assert candidate.prompt == (5, 6)


# ---------------------------------------------------------------- pairs


def test_outcome_pairs_are_every_success_over_every_failure(episode):
    kept, _ = found(episode("a"), episode("b", reward=0.8, steps=2), episode("c", False, 0.1), episode("d", False, 0.2))
    pairs = outcome_pairs(kept, 1.5)
    assert sides(pairs) == [("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")]
    assert [pair.margin for pair in pairs] == pytest.approx([0.9, 0.8, 0.7, 0.6])
    assert {(pair.chosen_tokens, pair.rejected_tokens) for pair in pairs} == {(2, 2), (4, 2)}


def test_efficiency_pairs_are_fewest_steps_over_clearly_more_of_them(episode):
    kept, _ = found(*(episode(f"e{steps}", steps=steps) for steps in (2, 3, 4)), episode("f", False, steps=9))
    assert sides(efficiency_pairs(kept, 1.5)) == [("e2", "e3"), ("e2", "e4")]
    assert sides(efficiency_pairs(kept, 1.6)) == [("e2", "e4")]
    assert efficiency_pairs(kept[1:2], 1.5) == []


def test_a_triple_gives_its_three_orders_and_takes_each_episode_once(episode):
    kept, _ = found(
        episode("best"), episode("better"), episode("slow", steps=3), episode("lost", False), episode("gone", False)
    )
    pairs = triple_pairs(kept, 1.5)
    assert sides(pairs) == [("best", "slow"), ("slow", "gone"), ("best", "gone")]
    assert {pair.kind for pair in pairs} == {"triple"}


def test_pairs_are_of_one_task_role_and_prompt(episode):
    kept, _ = found(
        episode("a"),
        episode("b", False),
        episode("other-task", False, task="u"),
        episode("other-role", False, role="critic"),
        episode("other-prompt", False, prompt=(5, 9)),
    )
    assert sides(pairs_from(kept, ("outcome", "efficiency", "triple"), 1.5)) == [("a", "b")]


def test_a_task_with_one_outcome_alone_gives_no_outcome_pair(episode):
    kept, _ = found(episode("a"), episode("b"))
    assert pairs_from(kept, ("outcome",), 1.5) == []
