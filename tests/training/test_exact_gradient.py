"""Advantages with a critic against policy gradients computed by enumeration of a whole decision process."""

from __future__ import annotations

import pytest
import torch
from decision_process import (
    LIMIT,
    LOGITS,
    exact_values,
    gradient_under,
    gradient_up_to,
    gradient_with_limit,
    paths,
    softmax,
)

from deedrl.training.episodes import credited, rewarded_episodes
from deedrl.training.gae import gae
from deedrl.training.losses import policy_loss
from deedrl.training.packing import pack
from deedrl.types import TerminationReason

# ------------------------------------------------------------ the estimators

CUTS = (TerminationReason.TOKEN_LIMIT,)
WRONG = torch.tensor([0.9, -0.4, 0.2], dtype=torch.float64)
"""A critic that is far off."""


@pytest.fixture(scope="module")
def every_path():
    return paths(LOGITS, LIMIT)


def path_gradient(path, critic, *, gamma=1.0, lam=1.0, cut_by=CUTS):
    """The estimate [S, A] from one episode: from the recorded trajectory to the gradient of the loss at ratio 1."""
    [episode], _ = rewarded_episodes([path.trajectory("e")], max_tokens=99, step_weight=1.0, cut_by=cut_by)
    values = [float(critic[state]) for state in path.states]
    end = float(critic[path.at]) if episode.cut else None
    credit = gae(episode.rewards, values, end_value=end, gamma=gamma, lam=lam)
    samples = credited(episode, values, credit, credit.advantages)
    [batch] = pack(samples, micro_batch_tokens=10_000)
    free = LOGITS.clone().requires_grad_()
    # Where each sample's action tokens begin among the path's.
    begins = [sum(s.action_tokens for s in samples[:i]) for i in range(len(samples))]
    at = [
        begins[place] + int((batch.sample_of[:n] == row).sum())
        for n, row in enumerate(batch.sample_of.tolist())
        for place in [int(batch.given_as[row])]
    ]
    states, actions = ([column[i] for i in at] for column in (path.states, path.actions))
    logprobs = softmax(free)[states, actions]
    part = policy_loss(
        logprobs, logprobs.detach(), batch.advantages.double(), torch.ones(len(at)), clip_low=0.2, clip_high=0.2
    )
    part.loss.backward()
    return -free.grad


def mean_gradient(every_path, critic, **options):
    return sum(path.probability * path_gradient(path, critic, **options) for path in every_path)


def test_the_process_has_all_that_matters(every_path):
    assert sum(path.probability for path in every_path) == pytest.approx(1)
    assert {len(path.actions) for path in every_path} == {1, 2, 3, 4, 5}
    lengths = {sum(move.says or 0 for move in path.moves) for path in every_path}
    assert len(lengths) > 5, "tool tokens in different numbers"
    cut = sum(path.probability for path in every_path if path.at >= 0)
    assert 0.1 < cut < 0.5
    split = [path for path in every_path if any(move.again for move in path.moves[:-1])]
    assert split, "episodes of several samples"


def test_values_of_the_process_solve_its_equations_and_agree_with_long_episodes():
    values = exact_values(LOGITS)
    long = paths(LOGITS, 8)
    earned = sum(p.probability * sum(m.pays + {-1: 1.0, -2: 0.2}.get(m.to, 0) for m in p.moves) for p in long)
    rest = sum(p.probability for p in long if p.at >= 0)
    assert float(values[0]) == pytest.approx(earned, abs=1.5 * rest)
    assert rest < 0.1


def test_the_two_exact_gradients_agree_where_the_limit_hardly_matters():
    (gradient,) = torch.autograd.grad(exact_values(free := LOGITS.clone().requires_grad_())[0], free)
    assert torch.allclose(gradient_up_to(LOGITS, 200), gradient, atol=1e-9)
    assert torch.allclose(gradient_with_limit(LOGITS, 7), gradient, atol=0.15)


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_with_true_values_the_mean_is_the_exact_gradient_for_any_lambda_cut_episodes_included(every_path, lam):
    found = mean_gradient(every_path, exact_values(LOGITS), lam=lam)
    assert torch.allclose(found, gradient_up_to(LOGITS, LIMIT), atol=1e-6)


@pytest.mark.parametrize("critic", [WRONG, torch.zeros(3, dtype=torch.float64)])
def test_at_lambda_one_any_critic_gives_the_exact_gradient_of_episodes_that_end(every_path, critic):
    """The limit belongs to the job here, so nothing is bootstrapped and the rubric's word on a cut episode counts."""
    found = mean_gradient(every_path, critic, cut_by=())
    assert torch.allclose(found, gradient_with_limit(LOGITS, LIMIT), atol=1e-6)


def test_an_episode_that_is_cut_and_not_bootstrapped_points_elsewhere(every_path):
    """Shows that the tests above can fail: cut episodes taken as ended, by the exact gradient without a limit."""
    exact = gradient_up_to(LOGITS, LIMIT)
    found = mean_gradient(every_path, exact_values(LOGITS), cut_by=())
    assert float((found - exact).norm()) > 0.05 * float(exact.norm())


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_with_a_wrong_critic_the_mean_is_what_the_process_says_it_must_be(every_path, lam):
    found = mean_gradient(every_path, WRONG, lam=lam)
    assert torch.allclose(found, gradient_under(LOGITS, LIMIT, WRONG, lam), atol=1e-6)


def test_bias_of_a_wrong_critic_is_as_documented():
    """Relative to the gradient's norm: at lambda 1 that of the ends of cut episodes; it grows as lambda falls."""
    exact = gradient_up_to(LOGITS, LIMIT)
    found = [
        float((gradient_under(LOGITS, LIMIT, WRONG, lam) - exact).norm() / exact.norm()) for lam in (1, 0.95, 0.5, 0)
    ]
    assert found == pytest.approx([0.33, 0.39, 1.13, 2.11], abs=0.005)
    true = exact_values(LOGITS)
    assert torch.allclose(gradient_under(LOGITS, LIMIT, true, 0.5), exact, atol=1e-9)


def test_discounting_drops_the_weight_of_later_tokens_as_is_usual(every_path):
    """The estimator has no gamma^t on token t: exact for that sum, biased for the discounted objective."""
    found = mean_gradient(every_path, exact_values(LOGITS, 0.9), gamma=0.9, lam=0.7)
    assert torch.allclose(found, gradient_up_to(LOGITS, LIMIT, 0.9), atol=1e-6)
    exact = gradient_up_to(LOGITS, LIMIT, 0.9, discounted=True)
    assert float((found - exact).norm() / exact.norm()) > 0.02


def test_the_mean_over_sampled_episodes_is_within_three_standard_errors(every_path):
    generator = torch.Generator().manual_seed(0)
    weights = torch.tensor([path.probability for path in every_path], dtype=torch.float64)
    drawn = torch.multinomial(weights, 20_000, replacement=True, generator=generator)
    each = torch.stack([path_gradient(path, exact_values(LOGITS), lam=0.9) for path in every_path])[drawn]
    error = each.std(0) / len(drawn) ** 0.5
    assert bool(((each.mean(0) - gradient_up_to(LOGITS, LIMIT)).abs() <= 3 * error).all())
    assert float((error / gradient_up_to(LOGITS, LIMIT).abs()).max()) < 0.2, "the check must be able to fail"
