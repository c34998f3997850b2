"""The one reading of "did this episode do its job?" that rewards, metrics and mining share."""

from __future__ import annotations

from deedrl.types import TerminationReason, Trajectory


def completed(trajectory: Trajectory) -> bool | None:
    """True or False for an episode that counts, None for one that was never judged.

    Infrastructure trouble gives None. An episode that ended because its text could not be parsed failed by its own
    doing, so it is False even when no verifier ran (case F24).
    """
    if trajectory.errored:
        return None
    if trajectory.verdict is not None:
        return trajectory.verdict.solved
    return False if trajectory.termination is TerminationReason.PARSE_FAILURES else None


def succeeded_calls(trajectory: Trajectory) -> list[str]:
    """Names of the tools whose calls ran and were accepted, in order."""
    return [
        step.action.tool_name
        for step in trajectory.steps
        if step.action.tool_name is not None and step.tool_output is not None and step.tool_output.ok
    ]
