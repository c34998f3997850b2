"""The estimators against policy gradients computed by enumeration of a whole decision process.

The process is small enough to list all its episodes, and is played as tokens with what tools say between them. It has
three states and two actions (tokens). An action may end the turn: then a tool answers with some tokens and the
environment may pay for the step. Some ends reach the goal, some give up, and a limit of tokens cuts what goes on. As
all paths up to the limit are known with their probabilities, means over episodes are sums, without noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from deedrl.training.episodes import credited, rewarded_episodes
from deedrl.training.gae import gae
from deedrl.training.losses import policy_loss
from deedrl.training.packing import pack
from deedrl.types import Action, Completion, RewardBreakdown, Step, TerminationReason, Trajectory

# ------------------------------------------------------------ the process

GOAL, GAVE_UP = -1, -2
OUTCOME = {GOAL: 1.0, GAVE_UP: 0.2}
CUT_OUTCOME = 0.3
"""What the rubric makes of a state in which a limit cut the episode."""
REASON = {GOAL: TerminationReason.GOAL, GAVE_UP: TerminationReason.TOOL_ENDED}
STATES, ACTIONS = 3, 2


class Move(NamedTuple):
    """One way an action may go. `says` None: the turn goes on; else the tool answers with so many tokens."""

    probability: float
    to: int
    says: int | None = None
    pays: float = 0.0
    again: bool = False
    """The conversation is rendered anew, so a new sample begins."""


MOVES: dict[tuple[int, int], tuple[Move, ...]] = {
    (0, 0): (Move(0.6, 1), Move(0.4, 2)),
    (0, 1): (Move(0.7, 2, says=3, pays=-0.1), Move(0.3, GAVE_UP, says=1)),
    (1, 0): (Move(0.5, GOAL, says=2), Move(0.5, 0, says=1, pays=0.25)),
    (1, 1): (Move(1.0, 2, says=5, pays=0.05, again=True),),
    (2, 0): (Move(0.8, 0, says=2), Move(0.2, GAVE_UP, says=4)),
    (2, 1): (Move(0.4, 1), Move(0.6, GOAL, says=1)),
}


@dataclass
class Path:
    """One episode: the states its tokens were sampled in, the tokens, and how each went."""

    probability: float = 1.0
    states: list[int] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    @property
    def at(self) -> int:
        return self.moves[-1].to if self.moves else 0

    def then(self, action: int, move: Move, probability: float) -> Path:
        return Path(
            self.probability * probability * move.probability,
            [*self.states, self.at],
            [*self.actions, action],
            [*self.moves, move],
        )

    def trajectory(self, name: str) -> Trajectory:
        """As the runner would record it; tokens 2 and 3 are the actions, those of tools begin at 10."""
        steps: list[Step] = []
        context, tokens, paid = [10, 11], [], 0.0
        known, again = list(context), False
        for index, (action, move) in enumerate(zip(self.actions, self.moves, strict=True)):
            tokens.append(2 + action)
            last = index == len(self.moves) - 1
            if move.says is None and not last:
                continue
            ended = move.says is not None
            paid = 1.0 if move.to == GOAL else move.pays
            completion = Completion(
                text="",
                prompt_ids=tuple(context),
                token_ids=tuple(tokens),
                logprobs=(-1.0,) * len(tokens),
                extends_previous=bool(steps) and not again,
            )
            steps.append(
                Step(
                    index=len(steps),
                    observation="",
                    completion=completion,
                    action=Action(),
                    reward=paid if ended else None,
                    reward_missing=None if ended else "not an action",
                )
            )
            known += [*tokens, *range(10, 10 + (move.says or 0))]
            again = move.again
            context = list(known) if again else list(range(10, 10 + (move.says or 0)))
            if again:
                known = list(context)
            tokens = []
        reason = REASON.get(self.at, TerminationReason.TOKEN_LIMIT)
        return Trajectory(
            episode_id=name,
            task_id="t",
            steps=tuple(steps),
            termination=reason,
            breakdown=RewardBreakdown(total=OUTCOME.get(self.at, CUT_OUTCOME)),
        )


def softmax(logits: Tensor) -> Tensor:
    return logits.log_softmax(-1)


def paths(logits: Tensor, limit: int) -> list[Path]:
    """All episodes of at most `limit` action tokens under the policy softmax(logits [S, A])."""
    policy = softmax(logits).exp().tolist()

    def grown(path: Path) -> Iterator[Path]:
        if path.at < 0 or len(path.actions) == limit:
            yield path
            return
        for action in range(ACTIONS):
            for move in MOVES[path.at, action]:
                yield from grown(path.then(action, move, policy[path.at][action]))

    return list(grown(Path()))


def paid(move: Move) -> float:
    """What follows an action token: the step's reward, and the outcome where the episode ends."""
    return move.pays + OUTCOME.get(move.to, 0.0)


def exact_values(logits: Tensor, gamma: float = 1.0) -> Tensor:
    """Values [S] of the process without a limit: the solution of V = r + gamma P V, differentiable in the logits."""
    policy = softmax(logits).exp()
    reward, matrix = torch.zeros(STATES, dtype=logits.dtype), torch.zeros(STATES, STATES, dtype=logits.dtype)
    for (state, action), moves in MOVES.items():
        for move in moves:
            weight = policy[state, action] * move.probability
            reward = reward + weight * paid(move) * torch.eye(STATES, dtype=logits.dtype)[state]
            if move.to >= 0:
                place = torch.zeros(STATES, STATES, dtype=logits.dtype)
                place[state, move.to] = 1.0
                matrix = matrix + weight * place
    return torch.linalg.solve(torch.eye(STATES, dtype=logits.dtype) - gamma * matrix, reward)


def exact_action_values(logits: Tensor, gamma: float = 1.0) -> Tensor:
    """Q [S, A] of the process without a limit."""
    values = exact_values(logits, gamma)
    result = torch.zeros(STATES, ACTIONS, dtype=logits.dtype)
    for (state, action), moves in MOVES.items():
        for move in moves:
            later = values[move.to] if move.to >= 0 else 0.0
            result[state, action] = result[state, action] + move.probability * (paid(move) + gamma * later)
    return result


def reached(logits: Tensor, limit: int) -> Iterator[Tensor]:
    """For each of the first `limit` tokens the probabilities [S] of the states it may be sampled in."""
    policy, at = softmax(logits).exp().detach(), torch.eye(STATES, dtype=logits.dtype)[0]
    for _ in range(limit):
        yield at
        following = torch.zeros_like(at)
        for (state, action), moves in MOVES.items():
            for move in moves:
                if move.to >= 0:
                    following[move.to] += at[state] * policy[state, action] * move.probability
        at = following


def weighted_gradient(logits: Tensor, at: Tensor, advantages: Tensor) -> Tensor:
    """Sum over states and actions of at [S] times grad pi(a|s) times advantages [S, A]."""
    policy = softmax(logits).exp().detach()
    return at[:, None] * policy * (advantages - (policy * advantages).sum(-1, keepdim=True))


def gradient_up_to(logits: Tensor, limit: int, gamma: float = 1.0, *, discounted: bool = False) -> Tensor:
    """Policy gradient theorem over the first `limit` tokens: sum over t of d_t(s) grad pi(a|s) Q(s, a), [S, A].

    Q is that of the process without a limit. `discounted` weights token t by gamma^t, as the gradient of a discounted
    objective has it.
    """
    actions = exact_action_values(logits, gamma).detach()
    weights = [gamma**time if discounted else 1.0 for time in range(limit)]
    parts = zip(weights, reached(logits, limit), strict=True)
    return sum(weight * weighted_gradient(logits, at, actions) for weight, at in parts)


def gradient_under(logits: Tensor, limit: int, critic: Tensor, lam: float) -> Tensor:
    """What GAE's mean must be with this critic [S], by dynamic programming; no episode is looked at."""
    policy = softmax(logits).exp().detach()
    later, by_time = torch.zeros(STATES, ACTIONS, dtype=logits.dtype), []
    for _ in range(limit):
        now, carried = torch.zeros_like(later), (policy * later).sum(-1)
        for (state, action), moves in MOVES.items():
            for move in moves:
                goes_on = critic[move.to] + lam * carried[move.to] if move.to >= 0 else 0.0
                now[state, action] += move.probability * (paid(move) + goes_on - critic[state])
        by_time.append(now)
        later = now
    parts = zip(reached(logits, limit), reversed(by_time), strict=True)
    return sum(weighted_gradient(logits, at, advantages) for at, advantages in parts)


def gradient_with_limit(logits: Tensor, limit: int) -> Tensor:
    """Gradient [S, A] of the mean total reward where the limit belongs to the job, by enumeration of all paths."""
    free = logits.detach().clone().requires_grad_()
    policy = softmax(free)
    total = torch.zeros((), dtype=logits.dtype)
    for path in paths(logits, limit):
        likelihood = sum(policy[s, a] for s, a in zip(path.states, path.actions, strict=True)).exp()
        chance = torch.tensor([move.probability for move in path.moves], dtype=logits.dtype).prod()
        earned = sum(paid(move) for move in path.moves if move.says is not None)
        earned += CUT_OUTCOME if path.at >= 0 else 0.0
        total = total + likelihood * chance * earned
    (gradient,) = torch.autograd.grad(total, free)
    return gradient


# ------------------------------------------------------------ the estimators

LIMIT = 5
LOGITS = torch.tensor([[0.3, -0.2], [-0.5, 0.4], [0.1, 0.6]], dtype=torch.float64)
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
