"""Settings of the stage `ppo`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from deedrl.config import Count, LearningRate, Many, NonNegative, PositiveFloat, PositiveInt, Share, require
from deedrl.pipeline.stage_base import Limit, OnlineSettings


class Ppo(OnlineSettings, frozen=True, kw_only=True, tag="ppo"):
    """Online policy optimisation with a critic: advantages over action tokens by GAE."""

    kind: ClassVar[str] = "ppo"

    group_size: Many = 4
    """Trajectories of one task; they are not compared, but share the computation of what they begin with."""
    learning_rate: LearningRate = 1e-4
    """Peak learning rate of the policy (of the adapter, if there is one)."""
    mini_batches: PositiveInt = 2
    """Updates in one pass over a sampled batch, each on its share of the tasks, dealt in a seeded order."""
    updates_per_batch: PositiveInt = 2
    """Passes over each sampled batch."""
    critic: Literal["value_head", "adapter"] = "value_head"
    """What the critic is built on: the policy's own hidden states, or an adapter of its own on the frozen base."""
    critic_learning_rate: LearningRate = 1e-3
    """Learning rate of what the critic alone has; constant."""
    value_coefficient: PositiveFloat = 0.5
    """Weight of the critic's loss in what it shares with the policy; an adapter of its own shares nothing."""
    value_clip: PositiveFloat | None = 0.2
    """In an update a value counts at most this far from where it was before; null leaves the clipping out."""
    value_warmup_steps: Count = 1
    """First steps, of `steps`, in which the critic alone learns; the policy's schedule begins after them."""
    gamma: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Discount of each action token."""
    gae_lambda: Share = 1.0
    """From 1 (returns as they came: no bias from the critic) to 0 (one token, then the critic's word)."""
    whiten_advantages: bool = True
    """Advantages of a step get mean 0 and standard deviation 1 over its action tokens."""
    step_reward_weight: NonNegative = 1.0
    """Weight of what the environment pays for single steps, beside the episode's reward; 0 leaves it out."""
    bootstrap_at: tuple[Limit, ...] = ("step_limit", "token_limit", "timeout")
    """Limits that are not part of the job: for an episode that one of them cut, the critic's value of its last state
    takes the place of its reward. Where failing within the limits is failing the job, set []."""

    def validate(self, path: str) -> None:
        super().validate(path)
        require(
            self.value_warmup_steps < self.steps,
            f"{path}.value_warmup_steps",
            f"expected less than steps ({self.steps}), or the policy would never learn; got {self.value_warmup_steps}",
        )
        twice = sorted({limit for limit in self.bootstrap_at if self.bootstrap_at.count(limit) > 1})
        require(not twice, f"{path}.bootstrap_at", f"expected each limit once, got {', '.join(twice)} twice")
