"""Infrastructure trouble: how often to retry, when to stop the run, and what to keep for training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from deedrl.errors import ConfigError, DeedRLError
from deedrl.types import Failure, Record, Trajectory

MAX_MESSAGE_CHARS = 400
"""Of one failure, in the message that stops a run."""


class FailurePolicy(Record, frozen=True):
    """What to do about trouble that the policy did not cause.

    A failed episode is played again from the start, in a fresh environment and with the same seeds (a retry with
    other samples would favour episodes that avoid the trouble), up to `retries` times. When more than
    `max_failure_share` of the episodes started so far have failed for good, the run stops with `RolloutsStopped`;
    this is judged from `min_episodes` failures on, and once more at the end whatever the number.
    """

    retries: int = 2
    max_failure_share: float = 0.5
    min_episodes: int = 8

    def __post_init__(self) -> None:
        if self.retries < 0 or self.min_episodes < 1 or not 0.0 <= self.max_failure_share <= 1.0:
            raise ConfigError(
                "expected retries >= 0, min_episodes >= 1 and max_failure_share in [0, 1]; "
                f"got {self.retries}, {self.min_episodes} and {self.max_failure_share}"
            )


class RolloutsStopped(DeedRLError):
    """Too many episodes failed for reasons outside the policy.

    `trajectories` holds what had finished, failed episodes included, in the order of the specs.
    """

    def __init__(self, message: str, trajectories: Sequence[Trajectory] = ()) -> None:
        super().__init__(message)
        self.trajectories = tuple(trajectories)


class FailureLedger:
    """Keeps count while a run is on."""

    def __init__(self, policy: FailurePolicy) -> None:
        self._policy = policy
        self._reasons: Counter[str] = Counter()
        self._examples: dict[str, Failure] = {}
        self.started = 0
        self.failed = 0

    def start(self) -> None:
        self.started += 1

    def finish(self, trajectory: Trajectory) -> None:
        """Counts a finished episode; raises `RolloutsStopped` if the share of failures is too high by now."""
        if trajectory.failure is None:
            return
        reason = failure_reason(trajectory.failure)
        self.failed += 1
        self._reasons[reason] += 1
        self._examples.setdefault(reason, trajectory.failure)
        if self.failed >= self._policy.min_episodes:
            self.check()

    def check(self) -> None:
        """Raises `RolloutsStopped` if more than the allowed share of the started episodes failed."""
        if not self.started or self.failed / self.started <= self._policy.max_failure_share:
            return
        reasons = "; ".join(
            f"{count} x {reason}: {_in_short(self._examples[reason].message)}"
            for reason, count in self._reasons.most_common(3)
        )
        raise RolloutsStopped(
            f"{self.failed} of {self.started} episodes failed for reasons outside the policy, more than the allowed "
            f"share of {self._policy.max_failure_share:g}. {reasons}. Fix the cause and run again; finished episodes "
            "are kept, failed ones with their traceback (failure.trace in trajectories/*.jsonl)"
        )


def _in_short(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= MAX_MESSAGE_CHARS else line[: MAX_MESSAGE_CHARS - 1] + "…"


def failure_reason(failure: Failure) -> str:
    """``phase: kind``, the key under which failures are counted."""
    return f"{failure.phase}: {failure.kind}"


class DroppedGroups(Record, frozen=True):
    """What `drop_broken_groups` left out."""

    groups: int = 0
    episodes: int = 0
    """All siblings of the dropped groups, healthy ones included."""
    reasons: Mapping[str, int] = {}
    """Failed episodes by `failure_reason`."""


def drop_broken_groups(trajectories: Iterable[Trajectory]) -> tuple[list[Trajectory], DroppedGroups]:
    """The trajectories whose whole group is free of failures, in order, and what was dropped (case D04).

    A group is all trajectories of one task and role. Keeping the healthy siblings of a failed episode would bias
    the group towards whatever avoids the failure, so one failure drops them all.
    """
    everything = list(trajectories)
    broken = {(t.task_id, t.role) for t in everything if t.failure is not None}
    kept = [t for t in everything if (t.task_id, t.role) not in broken]
    reasons = Counter(failure_reason(t.failure) for t in everything if t.failure is not None)
    return kept, DroppedGroups(groups=len(broken), episodes=len(everything) - len(kept), reasons=dict(reasons))


def first_error(error: BaseException) -> BaseException:
    """The first leaf if `error` is a group; a task group wraps even a single exception."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
