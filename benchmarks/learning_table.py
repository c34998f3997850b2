"""How many updates each estimator needs on a job whose horizon grows, with a policy that is a table.

    python benchmarks/learning_table.py [--horizons 2 4 8 12] [--seeds 10] [--rates 0.05 0.1 0.2 0.4] [--updates 300]
        [--methods grpo rloo ...] [--json FILE] [--noise [--groups 500]]

The job: the first turn takes one of four keys, and one fits. Every later turn is routine: one of four ways leads on,
and the policy takes it with 70 % to begin with, as after a cold start. Every second slip does harm, and none is
noticed: only at the end of the corridor the door opens or does not. So successes hold slips and failures hold right
steps. What the policy looks at is its place in the corridor, so what it learns with a wrong key it uses with the right
one. States (place, key, harm done or not) recur among siblings. All is exact but the episodes: the completion rate of
the table is computed, not estimated.

Credit, losses, packing and the optimiser are those of training, called as the stages call them; only the model is a
table, which reads the state from the token in front of an action. Printed are the updates until 90 % completion, mean
and range over seeds, each method with the best of the learning rates on each horizon. With `--noise` it prints instead
how many groups it takes until the noise of their mean gradient is as large as the gradient. Minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from deedrl.training import advantages
from deedrl.training.credit import Comparison, anchor_credit, anchors
from deedrl.training.critic import Rates, StepStats
from deedrl.training.episodes import rewarded_episodes
from deedrl.training.headed import StateValues
from deedrl.training.learner import Loss, UpdateStats
from deedrl.training.losses import Silent
from deedrl.training.optimiser import Optimiser, step_together
from deedrl.training.packing import Batch
from deedrl.training.policy_gradient import PolicyUpdate, update_policy
from deedrl.training.ppo import PpoUpdate, update_actor_critic
from deedrl.training.selection import group_trajectories, select
from deedrl.types import Action, Completion, RewardBreakdown, Step, TerminationReason, Trajectory

ACTIONS, RIGHT, ROUTINE = 4, 0, 0.7
FORGIVEN = 0.5
"""Chance that a slip does no harm."""
GROUPS, SIBLINGS = 1, 8
TARGET = 0.9
FIRST_STATE, FIRST_ACTION = 10, 2
"""Token ids of state 0 and of action 0."""


# ------------------------------------------------------------ the job


@dataclass(frozen=True)
class Corridor:
    """`horizon` turns: a key, then the way."""

    horizon: int

    @property
    def states(self) -> int:
        return 1 + (self.horizon - 1) * ACTIONS * 2

    def states_on(self, taken: Sequence[int], harmed: Sequence[bool]) -> list[int]:
        """The states of an episode: the place, the key and whether harm was done before."""
        found = [0]
        for place in range(1, self.horizon):
            found.append(1 + ((place - 1) * ACTIONS + taken[0]) * 2 + any(harmed[:place]))
        return found

    def place(self, states: Tensor) -> Tensor:
        """What the policy sees of states."""
        return torch.where(states == 0, 0, 1 + (states - 1) // (ACTIONS * 2))

    def logits(self, key: float, routine: float) -> Tensor:
        """Logits [places, actions] of a policy that takes the right key and the right way with these chances."""
        right = torch.tensor([key] + [routine] * (self.horizon - 1))
        others = torch.zeros(self.horizon, ACTIONS - 1)
        return torch.cat([(right / (1 - right) * (ACTIONS - 1)).log()[:, None], others], dim=1)

    def values(self, logits: Tensor) -> Tensor:
        """What each state is worth under a policy."""
        right = logits.detach().softmax(-1)[:, RIGHT]
        passed = right + FORGIVEN * (1 - right)
        values = torch.zeros(self.states)
        values[0] = right[0] * passed[1:].prod()
        for place in range(1, self.horizon):
            values[1 + ((place - 1) * ACTIONS + RIGHT) * 2] = passed[place:].prod()
        return values

    def completion(self, logits: Tensor) -> float:
        """Chance that the door opens."""
        return float(self.values(logits)[0])

    def play(self, logits: Tensor, generator: torch.Generator) -> list[Trajectory]:
        """Groups of siblings, as the runner records episodes; each turn is one token."""
        policy = logits.detach().log_softmax(-1)
        drawn = torch.multinomial(policy.exp(), GROUPS * SIBLINGS, replacement=True, generator=generator).T
        chosen = policy.expand(len(drawn), -1, -1).gather(2, drawn[..., None])[..., 0]
        unlucky = torch.rand(drawn.shape, generator=generator) >= FORGIVEN
        harmed = (drawn != RIGHT) & unlucky
        harmed[:, 0] = drawn[:, 0] != RIGHT
        rows = zip(drawn.tolist(), chosen.tolist(), harmed.tolist(), strict=True)
        return [self._episode(f"t{i // SIBLINGS}", f"e{i}", *row) for i, row in enumerate(rows)]

    def _episode(self, task: str, name: str, taken: list[int], logprobs: list[float], harmed: list[bool]) -> Trajectory:
        steps = []
        states = self.states_on(taken, [False, *harmed[1:]])
        for turn, (state, action, logprob) in enumerate(zip(states, taken, logprobs, strict=True)):
            completion = Completion(
                text="",
                # The first prompt needs a token before its state, or nothing would be left of it as a prefix.
                prompt_ids=(1, FIRST_STATE + state) if turn == 0 else (FIRST_STATE + state,),
                token_ids=(FIRST_ACTION + action,),
                logprobs=(logprob,),
                extends_previous=turn > 0,
            )
            steps.append(
                Step(
                    index=turn,
                    observation="",
                    completion=completion,
                    action=Action(tool_name="go"),
                    reward=0.0,
                    state_hash=str(state),
                )
            )
        opened = not any(harmed)
        return Trajectory(
            episode_id=name,
            task_id=task,
            steps=tuple(steps),
            termination=TerminationReason.GOAL if opened else TerminationReason.TOOL_ENDED,
            breakdown=RewardBreakdown(total=float(opened)),
        )


# ------------------------------------------------------------ tables in place of a model


class TablePolicy:
    """A table of logits that takes updates as `Learner` does."""

    def __init__(self, job: Corridor, key: float = 1 / ACTIONS, routine: float = ROUTINE) -> None:
        self.job = job
        self.logits = nn.Parameter(job.logits(key, routine))
        self.optimiser = Optimiser({"logits": self.logits})

    def logprobs(self, batch: Batch) -> Tensor:
        places, actions = self.job.place(states_of(batch)), batch.targets[batch.predictions] - FIRST_ACTION
        return self.logits.log_softmax(-1)[places, actions]

    def update(
        self, batches: Sequence[Batch], loss: Loss, *, learning_rate: float, max_grad_norm: float
    ) -> UpdateStats:
        self.optimiser.clear()
        total = 0.0
        for batch in batches:
            share = loss(batch, self.logprobs(batch))
            self.optimiser.backward(share)
            total += float(share.detach())
        [norm], taken = step_together([(self.optimiser, learning_rate)], max_grad_norm)
        return UpdateStats(loss=total, grad_norm=norm, empty=False, skipped=not taken)


class TableCritic:
    """A policy and a table of values that take updates as `ActorCritic` does."""

    def __init__(self, policy: TablePolicy, values: Tensor | None) -> None:
        self.policy = policy
        self.critic = self
        self.table = nn.Parameter(torch.zeros(policy.job.states) if values is None else values)
        self.optimiser = Optimiser({"values": self.table})

    def values(self, batches: Sequence[Batch]) -> list[StateValues]:
        return [StateValues(self.table.detach()[states_of(batch)], torch.zeros(0)) for batch in batches]

    def update(self, batches: Sequence[Batch], policy_loss: Loss, value_loss: Loss, rates: Rates) -> StepStats:
        learnt = self.policy.update(batches, policy_loss, learning_rate=rates.policy, max_grad_norm=rates.max_grad_norm)
        self.optimiser.clear()
        for batch in batches:
            self.optimiser.backward(value_loss(batch, self.table[states_of(batch)]))
        [norm], _ = step_together([(self.optimiser, rates.critic)], rates.max_grad_norm)
        return StepStats(learnt.grad_norm, norm, skipped=learnt.skipped)


def states_of(batch: Batch) -> Tensor:
    """The state [N] in front of each action token."""
    tokens = torch.cat([batch.shared_ids.flatten(), batch.ids.flatten()])
    return tokens[batch.slots][batch.predictions] - FIRST_STATE


# ------------------------------------------------------------ learning


Learn = Callable[[list[Trajectory]], Any]
"""Takes the episodes of a step and updates the policy."""


def settings(rate: float) -> PolicyUpdate:
    return PolicyUpdate(
        learning_rate=rate,
        max_grad_norm=1.0,
        micro_batch_tokens=100_000,
        clip_low=0.2,
        clip_high=0.2,
        kl_coefficient=0.0,
        normalisation="token",
        normalisation_tokens=512,
    )


def by_comparison(comparison: Comparison, policy: TablePolicy, rate: float, values: Tensor | None = None) -> Learn:
    """As the stage `grpo` learns from the episodes of a step; nobody asks for values."""

    def learn(episodes: list[Trajectory]) -> Any:
        selection = select(group_trajectories(episodes), comparison, max_tokens=1000)
        silent = Silent(selection.counts.silent_episodes, selection.counts.silent_tokens)
        return update_policy(policy, selection.samples, settings(rate), None, silent)  # type: ignore[arg-type]

    return learn


def by_critic(lam: float, policy: TablePolicy, rate: float, values: Tensor | None = None) -> Learn:
    """As the stage `ppo` does, with one update a step, as the others have it; `values` are known from the start."""
    learner, order = TableCritic(policy, values), Random(0)
    chosen = PpoUpdate(
        policy=settings(rate),
        critic_learning_rate=0.1,
        gamma=1.0,
        gae_lambda=lam,
        value_clip=None,
        whiten_advantages=True,
    )

    def learn(episodes: list[Trajectory]) -> Any:
        rewarded, _ = rewarded_episodes(episodes, max_tokens=1000, step_weight=0.0, cut_by=())
        return update_actor_critic(learner, rewarded, chosen, None, order)  # type: ignore[arg-type]

    return learn


ANCHORS = partial(anchor_credit, gamma=1.0, anchor_weight=1.0)
MOSTLY_ANCHORS = partial(anchor_credit, gamma=1.0, anchor_weight=4.0)
METHODS: dict[str, Callable[..., Learn]] = {
    "grpo": partial(by_comparison, Comparison(advantages.grpo)),
    "rloo": partial(by_comparison, Comparison(advantages.rloo)),
    "grpo + anchors": partial(by_comparison, Comparison(advantages.grpo, credit=ANCHORS)),
    "rloo + anchors": partial(by_comparison, Comparison(advantages.rloo, credit=ANCHORS)),
    "rloo + 4 anchors": partial(by_comparison, Comparison(advantages.rloo, credit=MOSTLY_ANCHORS)),
    "ppo, lambda 1": partial(by_critic, 1.0),
    "ppo, lambda 0.9": partial(by_critic, 0.9),
}


def updates_needed(method: str, horizon: int, rate: float, seed: int, most: int) -> int | None:
    """Updates until the completion rate is 90 %; None if `most` do not suffice."""
    job = Corridor(horizon)
    policy = TablePolicy(job)
    learn = METHODS[method](policy, rate)
    generator = torch.Generator().manual_seed(1000 * horizon + seed)
    for update in range(most):
        if job.completion(policy.logits) >= TARGET:
            return update
        learn(job.play(policy.logits, generator))
    return most if job.completion(policy.logits) >= TARGET else None


def cell(method: str, horizon: int, rates: Sequence[float], seeds: int, most: int) -> dict[str, Any]:
    """The best of the rates: with most seeds that got there, then with the fewest updates on average."""
    tried = [
        {"rate": rate, "updates": [updates_needed(method, horizon, rate, seed, most) for seed in range(seeds)]}
        for rate in rates
    ]

    def cost(entry: dict[str, Any]) -> float:
        return fmean(most * 10 if updates is None else updates for updates in entry["updates"])

    return {"method": method, "horizon": horizon, "best": min(tried, key=cost), "tried": tried}


def shown(found: dict[str, Any]) -> str:
    """Mean, range and rate; how many seeds got there, if not all did."""
    updates, rate = found["best"]["updates"], found["best"]["rate"]
    reached = [count for count in updates if count is not None]
    if not reached:
        return "never"
    part = "" if len(reached) == len(updates) else f", {len(reached)} of {len(updates)}"
    return f"{fmean(reached):.0f} ({min(reached)} to {max(reached)}{part}; {rate:g})"


# ------------------------------------------------------------ noise


class Recorder(TablePolicy):
    """A table that notes gradients and stays as it is."""

    gradient: Tensor | None = None

    def update(
        self, batches: Sequence[Batch], loss: Loss, *, learning_rate: float, max_grad_norm: float
    ) -> UpdateStats:
        shares = [loss(batch, self.logprobs(batch)) for batch in batches]
        [self.gradient] = torch.autograd.grad(torch.stack(shares).sum(), [self.logits])
        return UpdateStats(loss=0.0, grad_norm=0.0, empty=False)


def noise_scale(method: str, horizon: int, key: float, routine: float, groups: int) -> float:
    """tr(covariance) / |mean|^2 of the gradient of one group (McCandlish et al. 2018, arXiv 1812.06162, eq. 2.9).

    The critic of methods that have one knows the true values.
    """
    policy = Recorder(Corridor(horizon), key, routine)
    generator = torch.Generator().manual_seed(horizon)
    each = []
    for _ in range(groups):
        policy.gradient = torch.zeros_like(policy.logits)  # stays where a group has no signal
        learn = METHODS[method](policy, 0.0, policy.job.values(policy.logits))
        learn(policy.job.play(policy.logits, generator))
        each.append(policy.gradient)
    found = torch.stack(each).double()
    spread = float(found.var(0).sum())
    return spread / (float(found.mean(0).square().sum()) - spread / groups)


POLICIES = {"at the start": (1 / ACTIONS, ROUTINE), "key known": (0.97, ROUTINE), "near the end": (0.97, 0.95)}
"""The chances of the right key and of the right way."""


def company(horizon: int, key: float, routine: float, groups: int) -> tuple[float, float]:
    """The share of groups with a signal, and in these that of successes' later turns which are alone in their state."""
    job = Corridor(horizon)
    generator = torch.Generator().manual_seed(horizon)
    telling = alone = turns = 0
    for _ in range(groups):
        siblings = job.play(job.logits(key, routine), generator)[:SIBLINGS]
        if not 0 < sum(episode.reward or 0.0 for episode in siblings) < SIBLINGS:
            continue
        telling += 1
        visited = Counter(state for episode in siblings for state in anchors(episode))
        later = [state for episode in siblings if episode.reward for state in anchors(episode)[1:]]
        alone += sum(visited[state] == 1 for state in later)
        turns += len(later)
    return telling / groups, alone / max(turns, 1)


def print_noise(methods: Sequence[str], horizons: Sequence[int], groups: int) -> list[dict[str, Any]]:
    found = []
    print("groups of 8 until noise is as large as the gradient")
    for name, (key, routine) in POLICIES.items():
        shares = [company(horizon, key, routine, groups) for horizon in horizons]
        print(f"| {name} | groups with a signal | {' | '.join(f'{telling:.0%}' for telling, _ in shares)} |")
        print(f"| {name} | successes' later turns alone | {' | '.join(f'{alone:.0%}' for _, alone in shares)} |")
        for method in methods:
            scales = [noise_scale(method, horizon, key, routine, groups) for horizon in horizons]
            print(f"| {name} | {method} | {' | '.join(f'{scale:.1f}' for scale in scales)} |", flush=True)
            found.append({"policy": name, "method": method, "horizons": list(horizons), "noise": scales})
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Updates until 90 % completion, by estimator and horizon.")
    parser.add_argument("--horizons", type=int, nargs="+", default=[2, 4, 8, 12])
    parser.add_argument("--seeds", type=int, default=10, help="runs of each case")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.4], help="learning rates to choose from"
    )
    parser.add_argument("--updates", type=int, default=300, help="a run ends after so many")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--json", type=Path, help="write every run's figures there as well")
    parser.add_argument("--noise", action="store_true", help="the noise of gradients in place of learning")
    parser.add_argument("--groups", type=int, default=500, help="groups that noise is measured on")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = print_noise(options.methods, options.horizons, options.groups) if options.noise else print_table(options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def print_table(options: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    print(f"updates of {GROUPS * SIBLINGS} episodes until {TARGET:.0%}: mean (range; learning rate)")
    for method in options.methods:
        cells = [cell(method, horizon, options.rates, options.seeds, options.updates) for horizon in options.horizons]
        found += cells
        print(f"| {method} | {' | '.join(map(shown, cells))} |", flush=True)
    return found


if __name__ == "__main__":
    main()
