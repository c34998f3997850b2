"""What siblings are credited with against policy gradients computed by enumeration of a whole decision process.

The limit belongs to the job here: a cut episode is scored like any other. Means over groups of two are sums over all
pairs of episodes; larger groups are drawn.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import combinations_with_replacement

import pytest
import torch
from decision_process import ACTIONS, LOGITS, STATES, gradient_with_limit, paths, scores, softmax

from deedrl.training.advantages import dr_grpo, grpo, rloo
from deedrl.training.credit import Comparison, anchor_credit, anchors, compared, outcome_credit, return_credit
from deedrl.training.losses import policy_loss
from deedrl.training.packing import pack
from deedrl.training.selection import select
from deedrl.training.turn_rewards import discounted, turn_rewards
from deedrl.types import TrajectoryGroup

LIMIT = 4
PATHS = paths(LOGITS, LIMIT)
SCORES = [scores(path, LOGITS) for path in PATHS]
SIBLINGS = [[path.trajectory(f"e{place}") for path in PATHS] for place in range(5)]
"""Each path as the first sibling, the second and so on."""
WEIGHTS = torch.tensor([path.probability for path in PATHS], dtype=torch.float64)
RETURNS = partial(return_credit, gamma=1.0)
ANCHORS = partial(anchor_credit, gamma=1.0, anchor_weight=1.0)


def comparison(estimator, credit=outcome_credit, step_weight=0.0):
    return Comparison(estimator, credit=credit, rewards=partial(turn_rewards, step_weight=step_weight))


def group_of(drawn):
    return TrajectoryGroup(
        task_id="t", role="agent", trajectories=tuple(SIBLINGS[place][i] for place, i in enumerate(drawn))
    )


def selected(drawn, chosen):
    """By sibling the advantages of its tokens in their order, as the samples carry them."""
    found = defaultdict(list)
    for sample in select([group_of(drawn)], chosen, max_tokens=99).samples:
        found[sample.episode_id] += [a for a, used in zip(sample.advantages, sample.action_mask, strict=True) if used]
    return [found[f"e{place}"] for place in range(len(drawn))]


def group_gradient(drawn, chosen):
    """The estimate [S, A] from one group: the mean over siblings of their tokens' scores times advantages."""
    total = torch.zeros(STATES, ACTIONS, dtype=LOGITS.dtype)
    for i, advantages in zip(drawn, selected(drawn, chosen), strict=True):
        if advantages:  # a group without a signal has no samples
            total += torch.tensor(advantages, dtype=LOGITS.dtype)[:, None, None].mul(SCORES[i]).sum(0)
    return total / len(drawn)


def mean_of_pairs(chosen):
    """Over all pairs; in which order the two came makes no difference."""
    pairs = combinations_with_replacement(range(len(PATHS)), 2)
    return sum((1 + (i != j)) * WEIGHTS[i] * WEIGHTS[j] * group_gradient((i, j), chosen) for i, j in pairs)


def by_turn(values_of):
    """Mean over episodes of the sum over turns of the turn's score times `values_of(path)[turn]`."""
    total = torch.zeros(STATES, ACTIONS, dtype=LOGITS.dtype)
    for path, score in zip(PATHS, SCORES, strict=True):
        for tokens, value in zip(path.turns, values_of(path), strict=True):
            total += path.probability * value * score[tokens].sum(0)
    return total


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


def turned(found, expected):
    """How far off the estimate is, relative to the gradient, once scaled as well as can be."""
    return relative(found * (found * expected).sum() / found.square().sum(), expected)


# ------------------------------------------------------------ the pieces


def test_the_process_has_what_credit_must_cope_with():
    assert {len(path.turns) for path in PATHS} == {1, 2, 3, 4}
    assert sum(path.probability for path in PATHS if path.at >= 0) > 0.2, "cut episodes"
    assert any(any(move.again for move in path.moves[:-1]) for path in PATHS), "several samples"
    assert any(len(turn) > 1 for path in PATHS for turn in path.turns), "turns of several tokens"
    visits = [[trajectory.steps[t].state_hash for t in range(len(trajectory.steps))] for trajectory in SIBLINGS[0]]
    assert any(len(set(states)) < len(states) for states in visits), "states that an episode comes back to"


def test_rewards_by_turn_are_those_of_the_process():
    for path, trajectory in zip(PATHS, SIBLINGS[0], strict=True):
        assert turn_rewards(trajectory, step_weight=0.5) == pytest.approx(path.turn_rewards(0.5))


@pytest.mark.parametrize("credit", [outcome_credit, RETURNS, ANCHORS])
def test_gradient_of_the_loss_is_scores_times_advantages(credit):
    """Through packing and the loss itself, for groups with split, cut and several-token turns."""
    chosen = comparison(rloo, credit, step_weight=1.0)
    generator = torch.Generator().manual_seed(1)
    for drawn in torch.multinomial(WEIGHTS, 60, replacement=True, generator=generator).view(-1, 3).tolist():
        samples = select([group_of(drawn)], chosen, max_tokens=99).samples
        free, total = LOGITS.clone().requires_grad_(), 0.0
        begins = defaultdict(int)
        for sample in samples:
            [batch] = pack([sample], micro_batch_tokens=99)
            path, first = PATHS[drawn[int(sample.episode_id[1])]], begins[sample.episode_id]
            tokens = slice(first, first + sample.action_tokens)
            begins[sample.episode_id] = tokens.stop
            logprobs = softmax(free)[path.states[tokens], path.actions[tokens]]
            ones = torch.ones(sample.action_tokens)
            clips = {"clip_low": 0.2, "clip_high": 0.2}
            total = total + policy_loss(logprobs, logprobs.detach(), batch.advantages.double(), ones, **clips).loss
        if samples:
            total.backward()
            assert torch.allclose(-free.grad / 3, group_gradient(drawn, chosen), atol=1e-6)


# ------------------------------------------------------------ exact means


@pytest.mark.parametrize("step_weight", [0.0, 1.0])
@pytest.mark.parametrize("credit", [outcome_credit, RETURNS])
def test_leave_one_out_is_the_exact_gradient_whatever_turns_are_credited_with(credit, step_weight):
    """Rewards of single steps reach the gradient, as their total and turn by turn."""
    found = mean_of_pairs(comparison(rloo, credit, step_weight))
    assert torch.allclose(found, gradient_with_limit(LOGITS, LIMIT, step_weight), atol=1e-9)


def test_step_rewards_make_a_difference_that_the_tests_above_would_see():
    assert relative(gradient_with_limit(LOGITS, LIMIT, 0.0), gradient_with_limit(LOGITS, LIMIT, 1.0)) > 0.1


def test_the_group_mean_shrinks_the_gradient_by_the_share_of_the_others():
    """A sibling's own reward is in its baseline: (n - 1) / n of the gradient, in the same direction."""
    found = mean_of_pairs(comparison(dr_grpo, RETURNS, 1.0))
    assert torch.allclose(found, gradient_with_limit(LOGITS, LIMIT) / 2, atol=1e-9)


def test_discounting_by_turn_weighs_what_comes_later_less_and_no_turn_less():
    found = mean_of_pairs(comparison(rloo, partial(return_credit, gamma=0.6), 1.0))
    expected = by_turn(lambda path: discounted(path.turn_rewards(1.0), 0.6))
    assert torch.allclose(found, expected, atol=1e-9)
    assert relative(expected, gradient_with_limit(LOGITS, LIMIT)) > 0.1


def test_dividing_by_the_deviation_turns_the_gradient():
    """GRPO's bias, beyond a factor: of a pair's difference only the sign counts, so small ones count as large ones."""
    exact, found = gradient_with_limit(LOGITS, LIMIT, 0.0), mean_of_pairs(comparison(grpo))
    assert turned(found, exact) == pytest.approx(0.193, abs=0.001)


@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_anchors_add_the_part_of_the_gradient_of_states_in_which_others_have_been(weight):
    """With leave-one-out: a state's part counts once more as often as another sibling was there, times the weight."""
    visited = [sum(path.probability for path in PATHS if state in starts(path)) for state in range(STATES)]
    found = mean_of_pairs(comparison(rloo, partial(anchor_credit, gamma=1.0, anchor_weight=weight), 1.0))
    extra = by_turn(
        lambda path: [
            visited[state] * value
            for state, value in zip(starts(path), discounted(path.turn_rewards(1.0), 1.0), strict=True)
        ]
    )
    assert torch.allclose(found, gradient_with_limit(LOGITS, LIMIT) + weight * extra, atol=1e-9)


def starts(path):
    return [path.states[turn[0]] for turn in path.turns]


def test_bias_of_anchors_is_that_of_states_others_miss_and_falls_with_the_group():
    """Relative to 1 + weight times the gradient; of n siblings' states 1 - (1 - visited)^(n - 1) of a part counts."""
    exact = gradient_with_limit(LOGITS, LIMIT)
    visited = [sum(path.probability for path in PATHS if state in starts(path)) for state in range(STATES)]

    def mean(siblings):
        seen = [1 - (1 - share) ** (siblings - 1) for share in visited]
        return exact + by_turn(
            lambda path: [
                seen[state] * value
                for state, value in zip(starts(path), discounted(path.turn_rewards(1.0), 1.0), strict=True)
            ]
        )

    biases = [relative(mean(siblings), 2 * exact) for siblings in (2, 4, 8)]
    assert biases == pytest.approx([0.117, 0.018, 0.000], abs=0.001)


def by_turn_index(siblings, rewards, estimate):
    """What is not offered: turns of one index compared with each other, where there are several."""
    returns = [discounted(row, 1.0) for row in rewards]
    found = [[0.0] * len(row) for row in rewards]
    for turn in range(max(map(len, returns))):
        there = [place for place, row in enumerate(returns) if turn < len(row)]
        for place, [advantage] in zip(there, compared([[returns[p][turn]] for p in there], estimate), strict=True):
            found[place][turn] = advantage
    return found


def test_comparing_turns_of_one_index_loses_what_the_longer_ones_did_alone():
    """The policy decides when to stop, so how much a turn weighs is its own doing, and the gradient turns."""
    found, exact = mean_of_pairs(comparison(rloo, by_turn_index, 1.0)), gradient_with_limit(LOGITS, LIMIT)
    assert relative(found, exact) == pytest.approx(0.239, abs=0.001)
    assert turned(found, exact) > 0.05
    assert turned(mean_of_pairs(comparison(rloo, RETURNS, 1.0)), exact) < 1e-6


def each_visit(siblings, rewards, estimate):
    """The paper's groups, step part alone: each visit to a state counts, those of the same episode included."""
    returns = [discounted(row, 1.0) for row in rewards]
    found = [[0.0] * len(row) for row in rewards]
    states = [anchors(trajectory) for trajectory in siblings]
    for state in {state for row in states for state in row}:
        visits = [(p, t) for p, row in enumerate(states) for t, at in enumerate(row) if at == state]
        for (p, t), advantage in zip(visits, estimate([returns[p][t] for p, t in visits]), strict=True):
            found[p][t] = advantage
    return found


def test_counting_each_visit_to_a_state_lets_an_action_into_its_own_baseline():
    """Why an episode counts once in a state's group: what it does at one visit is seen in its return at another."""
    visited = [sum(path.probability for path in PATHS if state in starts(path)) for state in range(STATES)]
    expected = by_turn(
        lambda path: [
            visited[state] * value
            for state, value in zip(starts(path), discounted(path.turn_rewards(1.0), 1.0), strict=True)
        ]
    )
    step_part = mean_of_pairs(comparison(rloo, ANCHORS, 1.0)) - mean_of_pairs(comparison(rloo, outcome_credit, 1.0))
    assert relative(step_part, expected) < 1e-9
    assert relative(mean_of_pairs(comparison(rloo, each_visit, 1.0)), expected) == pytest.approx(0.071, abs=0.001)


# ------------------------------------------------------------ by sampling


@pytest.mark.parametrize("credit", [outcome_credit, RETURNS])
def test_the_mean_over_drawn_groups_of_five_is_within_three_standard_errors(credit):
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(WEIGHTS, 15_000, replacement=True, generator=generator).view(-1, 5).tolist()
    each = torch.stack([group_gradient(group, comparison(rloo, credit, 1.0)) for group in drawn])
    error = each.std(0) / len(drawn) ** 0.5
    exact = gradient_with_limit(LOGITS, LIMIT)
    assert bool(((each.mean(0) - exact).abs() <= 3 * error).all())
    assert float((error / exact.abs()).max()) < 0.3, "the check must be able to fail"
