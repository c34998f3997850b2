"""Hard requirements that hold beside the verifier's own `violations`."""

from __future__ import annotations

from dataclasses import dataclass

from deedrl.types import Trajectory


@dataclass(frozen=True)
class RequiredEvidence:
    """Vetoes an episode that decided without looking first (case F10).

    `evidence`: tools of which one must have answered. `decisions`: tools that need it; the first such call without
    an earlier accepted call of an evidence tool breaks the requirement, whether or not it was accepted. With no
    `decisions`, the whole episode needs the evidence once. An episode that never decided breaks nothing.
    """

    evidence: tuple[str, ...]
    decisions: tuple[str, ...] = ()
    name: str = "required_evidence"

    def reason(self, trajectory: Trajectory) -> str | None:
        wanted = " or ".join(self.evidence)
        for step in trajectory.steps:
            if step.action.valid and step.action.tool_name in self.decisions:
                return f"called {step.action.tool_name} before {wanted} had answered"
            if step.action.tool_name in self.evidence and step.tool_output is not None and step.tool_output.ok:
                return None
        return None if self.decisions else f"ended without an answer from {wanted}"
