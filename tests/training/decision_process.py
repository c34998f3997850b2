"""A decision process small enough to list all its episodes, played as tokens with what tools say between them.

It has three states and two actions (tokens). An action may end the turn: then a tool answers with some tokens and the
environment may pay for the step. Some ends reach the goal, some give up, and a limit of tokens cuts what goes on. As
all paths up to the limit are known with their probabilities, means over episodes are sums, without noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

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

    @property
    def turns(self) -> list[list[int]]:
        """The tokens of each turn, by their index."""
        found: list[list[int]] = [[]]
        for index, move in enumerate(self.moves):
            found[-1].append(index)
            if move.says is not None and index + 1 < len(self.moves):
                found.append([])
        return found

    def turn_rewards(self, step_weight: float) -> list[float]:
        """What each turn earned: `step_weight` times the steps' pay, and at the end the outcome."""
        earned = [
            step_weight * self.moves[turn[-1]].pays * (self.moves[turn[-1]].says is not None) for turn in self.turns
        ]
        earned[-1] += OUTCOME.get(self.at, CUT_OUTCOME)
        return earned

    def trajectory(self, name: str) -> Trajectory:
        """As the runner would record it; tokens 2 and 3 are the actions, those of tools begin at 10."""
        steps: list[Step] = []
        context, tokens, paid, began = [10, 11], [], 0.0, self.states[0]
        known, again = list(context), False
        for index, (action, move) in enumerate(zip(self.actions, self.moves, strict=True)):
            if not tokens:
                began = self.states[index]
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
                    state_hash=str(began),
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


def scores(path: Path, logits: Tensor) -> Tensor:
    """Gradient of the log-probability of each token of the path by the logits, [tokens, S, A]."""
    policy = softmax(logits).exp()
    found = torch.zeros(len(path.actions), STATES, ACTIONS, dtype=logits.dtype)
    for token, (state, action) in enumerate(zip(path.states, path.actions, strict=True)):
        found[token, state] = -policy[state]
        found[token, state, action] += 1.0
    return found


def gradient_with_limit(logits: Tensor, limit: int, step_weight: float = 1.0) -> Tensor:
    """Gradient [S, A] of the mean total reward where the limit belongs to the job, by enumeration of all paths."""
    free = logits.detach().clone().requires_grad_()
    policy = softmax(free)
    total = torch.zeros((), dtype=logits.dtype)
    for path in paths(logits, limit):
        likelihood = sum(policy[s, a] for s, a in zip(path.states, path.actions, strict=True)).exp()
        chance = torch.tensor([move.probability for move in path.moves], dtype=logits.dtype).prod()
        total = total + likelihood * chance * sum(path.turn_rewards(step_weight))
    (gradient,) = torch.autograd.grad(total, free)
    return gradient


LIMIT = 5
LOGITS = torch.tensor([[0.3, -0.2], [-0.5, 0.4], [0.1, 0.6]], dtype=torch.float64)
