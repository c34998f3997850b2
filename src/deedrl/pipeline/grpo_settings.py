"""Settings of the stage `grpo`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from deedrl.config import Count, Many, NonNegative, PositiveFloat, PositiveInt, require
from deedrl.pipeline.stage_base import Limit, OnlineSettings


class Grpo(OnlineSettings, frozen=True, kw_only=True, tag="grpo"):
    """Online policy optimisation with group-relative advantages."""

    kind: ClassVar[str] = "grpo"

    group_size: Many = 6
    """Sibling trajectories of one task; at least 2, for an advantage compares siblings."""
    kl_on_zero_variance: bool = False
    """Whether the KL term also acts on groups without a reward signal."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimate of the KL divergence of a sampled token, from d = its log-probability less the reference's: d; d²/2;
    exp(-d) + d - 1."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where it is added: to the loss, token by token, or taken from the reward of each turn."""
    objective: Literal["clipped", "sequence_clipped", "cispo"] = "clipped"
    """Importance ratios clipped by token (PPO), by sequence (GSPO), or as weights without a gradient (CISPO)."""
    advantage: Literal["grpo", "dr_grpo", "rloo"] = "grpo"
    """Group mean and std; group mean only; leave-one-out mean."""
    whiten_advantages: bool = False
    """Advantages of a step get mean 0 and standard deviation 1 over its action tokens; with ``dr_grpo``
    REINFORCE++-baseline."""
    zero_variance_threshold: NonNegative = 1e-6
    """A group whose rewards spread (standard deviation) by less than this carries no signal."""
    credit: Literal["outcome", "returns", "anchors"] = "outcome"
    """What a turn is compared by: the whole episode; what came from the turn on; both the whole episode and what came
    from the turn on where siblings were in the same state (GiGPO)."""
    gamma: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Discount of each turn in what came from a turn on."""
    anchor_weight: NonNegative = 1.0
    """With credit ``anchors``, weight of the comparison within a state beside that of whole episodes."""
    step_reward_weight: NonNegative = 0.0
    """Weight of what the environment pays for single steps, beside the episode's reward; 0 leaves it out."""
    left_out_at: tuple[Limit, ...] = ()
    """Limits: an episode that one of them cut is neither compared nor learnt from."""
    overlong_penalty: NonNegative = 0.0
    """Taken from the reward of a conversation as long as ``limits.max_tokens_per_episode``; 0 takes nothing."""
    overlong_buffer: PositiveInt = 128
    """Tokens before that limit over which the penalty rises from 0."""
    sampler_cap: PositiveFloat | None = None
    """Weighs each token by how much more likely the policy before the update was to draw it than the sampler, up to
    this; null takes the two for the same."""
    sampler_band: tuple[NonNegative, PositiveFloat] | None = None
    """With `sampler_cap`, tokens whose weight lies outside are left out of the loss."""
    refill_attempts: Count = 1
    """Rounds of fresh tasks sampled in a step to replace groups without a signal."""

    def validate(self, path: str) -> None:
        require(
            self.group_size >= 2,
            f"{path}.group_size",
            f"expected at least 2, got {self.group_size}; a group-relative advantage compares siblings",
        )
        require(
            self.gamma == 1 or self.credit != "outcome",
            f"{path}.gamma",
            f"expected 1 with credit outcome, which looks at no single turn, got {self.gamma:g}; set credit to returns "
            "or anchors",
        )
        require(
            self.kl_in == "reward" or self.kl_estimator != "k1",
            f"{path}.kl_estimator",
            "expected k2 or k3 with kl_in loss, got k1: its gradient is that of a log-probability, which is 0 in the "
            "mean, so it would add noise and hold nothing back",
        )
        require(
            self.kl_in == "loss" or not self.kl_on_zero_variance,
            f"{path}.kl_on_zero_variance",
            "expected false with kl_in reward, for siblings that earned the same would be told apart by KL alone",
        )
        require(
            self.sampler_band is None or (self.sampler_cap is not None and self.sampler_band[0] < self.sampler_band[1]),
            f"{path}.sampler_band",
            f"expected [low, high] with low < high, and sampler_cap with it, got {self.sampler_band}",
        )
        twice = sorted({limit for limit in self.left_out_at if self.left_out_at.count(limit) > 1})
        require(not twice, f"{path}.left_out_at", f"expected each limit once, got {', '.join(twice)} twice")
        super().validate(path)
