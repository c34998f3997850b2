"""What objectives and KL estimators do in the mean, by enumeration: exact, or with a bias that is measured.

Episodes are sampled by one policy and the loss is taken at another, some updates later. What the papers leave out of
the importance ratio (the tokens before, or all but a root of the sequence's) is a bias, and is measured here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import msgspec
import pytest
import torch
from decision_process import ACTIONS, LOGITS, STATES, paths, reached, scores, softmax

from deedrl.training.advantages import rloo
from deedrl.training.credit import Comparison, return_credit
from deedrl.training.losses import policy_loss
from deedrl.training.objectives import DIVERGENCES, OBJECTIVES, k1, sampler_weights
from deedrl.types import RewardBreakdown, TrajectoryGroup

LIMIT = 4
MOVED = LOGITS + torch.tensor([[0.25, -0.25], [-0.3, 0.2], [0.2, -0.3]], dtype=torch.float64)
"""The policy after some updates; ratios of tokens lie between 0.7 and 1.4."""
REFERENCE = LOGITS + torch.tensor([[-0.6, 0.4], [0.5, -0.2], [0.0, 0.7]], dtype=torch.float64)
PATHS = paths(LOGITS, LIMIT)
MEAN = sum(path.probability * sum(path.turn_rewards(0.0)) for path in PATHS)
WIDE = {"clip_low": 0.99, "clip_high": 99.0}


def logprobs_of(path, logits):
    return softmax(logits)[path.states, path.actions]


def advantage(path):
    return sum(path.turn_rewards(0.0)) - MEAN


def chance(path):
    """Of what the process did, whatever the policy."""
    return path.probability / float(logprobs_of(path, LOGITS).sum().exp())


def mean_gradient(objective, *, at=MOVED, clips=WIDE, **options):
    """Mean over episodes sampled by LOGITS of minus the gradient of the loss at the policy `at`, [S, A]."""
    total = torch.zeros(STATES, ACTIONS, dtype=LOGITS.dtype)
    for path in PATHS:
        free = at.clone().requires_grad_()
        logprobs, sampled = logprobs_of(path, free), logprobs_of(path, LOGITS)
        fixed = {name: make(logprobs.detach(), sampled) for name, make in options.items()}
        advantages = torch.full_like(sampled, advantage(path))
        ones = torch.ones_like(sampled)
        policy_loss(logprobs, sampled, advantages, ones, **clips, objective=objective, **fixed).loss.backward()
        total -= path.probability * free.grad
    return total


def weighted_by(weight_of, at=MOVED):
    """Sum over episodes of probability, advantage and score times `weight_of(path)` [tokens]: no code under test."""
    return sum(
        path.probability * advantage(path) * (weight_of(path)[:, None, None] * scores(path, at)).sum(0)
        for path in PATHS
    )


def ratios(path):
    return (logprobs_of(path, MOVED) - logprobs_of(path, LOGITS)).exp()


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


EXACT = weighted_by(lambda path: ratios(path).prod().expand(len(path.actions)))
"""The gradient at MOVED: the whole path's ratio puts its probability right."""


def test_the_exact_gradient_is_that_of_the_moved_policys_own_episodes():
    own = sum(path.probability * advantage(path) * scores(path, MOVED).sum(0) for path in paths(MOVED, LIMIT))
    assert torch.allclose(EXACT, own, atol=1e-9)


@pytest.mark.parametrize("objective", OBJECTIVES.values())
def test_on_policy_every_objective_is_exact(objective):
    found = mean_gradient(objective, at=LOGITS)
    exact = sum(path.probability * advantage(path) * scores(path, LOGITS).sum(0) for path in PATHS)
    assert torch.allclose(found, exact, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "weight", "bias"),
    [
        ("clipped", ratios, 0.082),
        ("cispo", ratios, 0.082),
        ("sequence_clipped", lambda p: ratios(p).log().mean().exp().expand(len(p.actions)), 0.119),
    ],
)
def test_bias_some_updates_later_is_what_the_ratio_leaves_out(name, weight, bias):
    """A token's ratio leaves out the tokens around it; the sequence's is the root of what it should be."""
    found = mean_gradient(OBJECTIVES[name])
    assert torch.allclose(found, weighted_by(weight), atol=1e-9)
    assert relative(found, EXACT) == pytest.approx(bias, abs=0.001)


def test_bias_of_clipped_weights_is_that_of_the_bound():
    """CISPO keeps every token, with the bound for a weight; PPO drops those that clipping acts on."""
    clips = {"clip_low": 0.1, "clip_high": 0.1}
    kept = mean_gradient(OBJECTIVES["cispo"], clips=clips)
    assert torch.allclose(kept, weighted_by(lambda path: ratios(path).clamp(0.9, 1.1)), atol=1e-9)

    def dropped(path):
        ratio = ratios(path)
        return ratio * ((ratio < 1.1) if advantage(path) > 0 else (ratio > 0.9))

    cut = mean_gradient(OBJECTIVES["clipped"], clips=clips)
    assert torch.allclose(cut, weighted_by(dropped), atol=1e-9)
    biases = relative(kept, EXACT), relative(cut, EXACT)
    assert biases == pytest.approx((0.132, 0.887), abs=0.001)


def test_correction_for_another_sampler_is_the_weight_of_each_token_and_the_cap_its_bias():
    """The trainer is at MOVED and has not been updated, the sampler was at LOGITS."""
    free = partial(sampler_weights, cap=1e9, band=None)
    corrected = mean_gradient(OBJECTIVES["clipped"], before=lambda now, _: now, correction=free)
    assert torch.allclose(corrected, weighted_by(ratios), atol=1e-9)
    uncorrected = mean_gradient(OBJECTIVES["clipped"], before=lambda now, _: now)
    assert torch.allclose(uncorrected, weighted_by(lambda path: torch.ones(len(path.actions))), atol=1e-9)
    assert relative(corrected, EXACT) < relative(uncorrected, EXACT)
    banded = partial(sampler_weights, cap=1.2, band=(0.8, 1.3))
    found = mean_gradient(OBJECTIVES["clipped"], before=lambda now, _: now, correction=banded)
    expected = weighted_by(lambda p: ratios(p).clamp(max=1.2) * ((ratios(p) >= 0.8) & (ratios(p) <= 1.3)))
    assert torch.allclose(found, expected, atol=1e-9)


# ------------------------------------------------------------ the KL divergence


def kl_gradient(divergence):
    """Mean over episodes sampled by LOGITS of the gradient of the KL term of the loss, at LOGITS."""
    total = torch.zeros(STATES, ACTIONS, dtype=LOGITS.dtype)
    for path in PATHS:
        free = LOGITS.clone().requires_grad_()
        logprobs, zeros = logprobs_of(path, free), torch.zeros(len(path.actions), dtype=LOGITS.dtype)
        reference = logprobs_of(path, REFERENCE)
        options = {"reference": reference, "kl_coefficient": 1.0, "divergence": divergence}
        policy_loss(logprobs, logprobs.detach(), zeros, zeros + 1, **WIDE, **options).loss.backward()
        total += path.probability * free.grad
    return total


def token_kl_gradient(forward):
    """Sum over states, as often as they come, of the gradient of KL(policy || reference) there, or the other way."""
    at = sum(reached(LOGITS, LIMIT))
    free = LOGITS.clone().requires_grad_()
    one, other = softmax(free), softmax(REFERENCE)
    each = (other.exp() * (other - one)).sum(-1) if forward else (one.exp() * (one - other)).sum(-1)
    (at * each).sum().backward()
    return free.grad


def test_k1_in_the_loss_pulls_nowhere():
    assert float(kl_gradient(DIVERGENCES["k1"]).norm()) < 1e-12


def test_k2_in_the_loss_has_the_gradient_of_the_divergence_token_by_token():
    assert torch.allclose(kl_gradient(DIVERGENCES["k2"]), token_kl_gradient(forward=False), atol=1e-9)


def test_k3_in_the_loss_has_the_gradient_of_the_divergence_the_other_way_round():
    assert torch.allclose(kl_gradient(DIVERGENCES["k3"]), token_kl_gradient(forward=True), atol=1e-9)
    assert relative(token_kl_gradient(forward=True), token_kl_gradient(forward=False)) > 0.05


def path_kl_gradient():
    """Of the divergence of whole episodes, where an action is blamed for the states it leads to as well."""
    free = LOGITS.clone().requires_grad_()
    total = torch.zeros((), dtype=LOGITS.dtype)
    for path in PATHS:
        logprob = logprobs_of(path, free).sum()
        total = total + chance(path) * logprob.exp() * (logprob - logprobs_of(path, REFERENCE).sum())
    total.backward()
    return free.grad


def test_k1_in_the_reward_has_the_gradient_of_the_divergence_of_whole_episodes():
    """By turn and with leave-one-out, over all pairs; no two paths earn the same, so every pair tells something."""
    beta, earned = 0.3, [0.01 * index for index in range(len(PATHS))]

    def siblings(place):
        played = [path.trajectory(f"e{place}") for path in PATHS]
        return [
            msgspec.structs.replace(one, breakdown=RewardBreakdown(total=total))
            for one, total in zip(played, earned, strict=True)
        ]

    def taken(path):
        estimates = beta * k1(logprobs_of(path, LOGITS), logprobs_of(path, REFERENCE))
        return [float(estimates[turn].sum()) for turn in path.turns]

    chosen = Comparison(rloo, 0.0, credit=partial(return_credit, gamma=1.0))
    firsts, seconds = siblings(0), siblings(1)
    by_turn = [torch.stack([scores(path, LOGITS)[turn].sum(0) for turn in path.turns]) for path in PATHS]
    penalties = [taken(path) for path in PATHS]
    found = torch.zeros(STATES, ACTIONS, dtype=LOGITS.dtype)
    for i, one in enumerate(PATHS):
        for j, other in enumerate(PATHS):
            if i == j:
                continue  # the same path twice: both earn the same and are left out, with or without KL
            group = TrajectoryGroup(task_id="t", role="agent", trajectories=(firsts[i], seconds[j]))
            pair = replace(chosen, penalties={"e0": penalties[i], "e1": penalties[j]}).advantages(group)
            for place, advantages in zip((i, j), pair, strict=True):
                part = torch.tensor(advantages, dtype=LOGITS.dtype)[:, None, None] * by_turn[place]
                found += one.probability * other.probability * part.sum(0) / 2
    paid = sum(path.probability * r * scores(path, LOGITS).sum(0) for path, r in zip(PATHS, earned, strict=True))
    same = same_path_part(by_turn, penalties)
    assert torch.allclose(found + same, paid - beta * path_kl_gradient(), atol=1e-9)
    assert relative(path_kl_gradient(), token_kl_gradient(forward=False)) > 0.05


def same_path_part(by_turn, penalties):
    """What pairs of the same path would add: turns of one against the mean of turns of the other."""
    total = torch.zeros(STATES, ACTIONS, dtype=LOGITS.dtype)
    for path, score, taken in zip(PATHS, by_turn, penalties, strict=True):
        later = torch.tensor([-sum(taken[turn:]) for turn in range(len(taken))], dtype=LOGITS.dtype)
        total += path.probability**2 * ((later - later.mean())[:, None, None] * score).sum(0)
    return total
