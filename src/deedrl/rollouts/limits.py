"""Bounds of an episode: steps, tokens, time, failed parses and repeated calls."""

from __future__ import annotations

import math

import msgspec

from deedrl.errors import ConfigError
from deedrl.types import Action, Completion, Record, SamplingParams


class Limits(Record, frozen=True):
    """When an episode is ended from outside.

    A limit of None is not enforced, except `max_steps`, where None means the environment's own `max_steps`
    (finite by default). Times are wall-clock seconds.
    """

    max_steps: int | None = None
    max_tokens_per_episode: int | None = None
    """Sampled tokens, all turns together; the last turn is offered only what is left."""
    max_context_tokens: int | None = None
    """Tokens of the whole conversation as the policy reports them (prompt and sampled)."""
    call_timeout_s: float = 30.0
    """For one call of the environment (build, reset, step, verify, close); a tool's own limit counts if shorter."""
    episode_timeout_s: float = 600.0
    max_parse_failures: int = 2
    """Consecutive completions that are not an action."""
    loop_warn: int | None = 3
    """The model is told when it has made this many calls that brought nothing new (see `LoopDetector`)."""
    loop_end: int | None = 5
    """The episode ends at this many."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"limit {name}: expected a positive number, got {value}")
        if self.loop_warn is not None and self.loop_end is not None and self.loop_end <= self.loop_warn:
            raise ConfigError(
                f"expected loop_end > loop_warn, so that the model is told before the episode ends; "
                f"got loop_warn={self.loop_warn}, loop_end={self.loop_end}"
            )


class TokenBudget:
    """Counts an episode's tokens against its limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.sampled = 0
        self.context = 0

    def add(self, completion: Completion) -> None:
        tokens = len(completion.token_ids)
        self.sampled += tokens
        kept = self.context if completion.extends_previous else 0
        self.context = kept + len(completion.prompt_ids) + tokens

    @property
    def exhausted(self) -> bool:
        most_sampled, most_context = self._limits.max_tokens_per_episode, self._limits.max_context_tokens
        return (most_sampled is not None and self.sampled >= most_sampled) or (
            most_context is not None and self.context >= most_context
        )

    def offer(self, sampling: SamplingParams) -> SamplingParams:
        """`sampling` with `max_tokens` cut to what is left of the episode's budget."""
        most = self._limits.max_tokens_per_episode
        if most is None or most - self.sampled >= sampling.max_tokens:
            return sampling
        return msgspec.structs.replace(sampling, max_tokens=most - self.sampled)


class LoopDetector:
    """Counts calls that bring nothing new (case D16).

    A call is stale if the same tool with the same parameters (key order does not matter) has given the same
    result before in this episode. `repeats` is 1 plus the length of the current run of stale calls, so it counts
    how often a call was made when one call is repeated, and it also grows when a model goes round in a circle of
    several calls. A call with a new result (a next page, a step on a grid) is progress and sets it back to 1.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[str | None, bytes, str]] = set()
        self.repeats = 0

    def add(self, action: Action, result: str) -> int:
        parameters = msgspec.json.encode(action.parameters, order="deterministic")
        key = (action.tool_name, parameters, result)
        self.repeats = self.repeats + 1 if key in self._seen else 1
        self._seen.add(key)
        return self.repeats
