"""Policy replay: recorded completions instead of a model."""

from __future__ import annotations

from collections.abc import Iterable

from deedrl.errors import StoreError
from deedrl.policies.policy import CompletionRequest, ContextFull
from deedrl.types import Completion, TerminationReason, Trajectory


class RecordedPolicy:
    """Answers turn n of an episode with the completion recorded for turn n of the trajectory with the same id.

    Token ids and log-probabilities are those of the recording. Where the recorded policy had no room for another turn,
    this one says so too (`ContextFull`). An unknown episode id and a turn beyond the
    recording raise `StoreError`: the replayed environment then went on longer than the recorded one.
    """

    version = "recorded"

    def __init__(self, trajectories: Iterable[Trajectory]) -> None:
        trajectories = list(trajectories)
        self._completions = {
            trajectory.episode_id: tuple(step.completion for step in trajectory.steps) for trajectory in trajectories
        }
        self._full = {t.episode_id for t in trajectories if t.termination is TerminationReason.TOKEN_LIMIT}

    async def complete(self, request: CompletionRequest) -> Completion:
        recorded = self._completions.get(request.episode_id)
        if recorded is None:
            raise StoreError(
                f"expected a recorded episode, got id '{request.episode_id}' ({len(self._completions)} recorded); "
                "replay with the episode ids of the recording"
            )
        if request.turn >= len(recorded) and request.episode_id in self._full:
            raise ContextFull(f"episode '{request.episode_id}' ended here for want of tokens")
        if request.turn >= len(recorded):
            raise StoreError(
                f"episode '{request.episode_id}' has {len(recorded)} recorded completions, but turn {request.turn} "
                "was asked for; the environment or the limits differ from the recording (see `replay_actions`)"
            )
        return recorded[request.turn]

    async def release(self, episode_id: str) -> None:
        """Nothing is cached."""
