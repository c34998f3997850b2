"""What a step logs of how reasoning depends on its input."""

from __future__ import annotations

from collections.abc import Sequence

from deedrl.pipeline.session import Session
from deedrl.pipeline.stage_base import OnlineSettings
from deedrl.training.dependence import first_reasoning, measured_dependence, sibling_retrieval
from deedrl.training.learner import Learner
from deedrl.types import Trajectory

MOST_EPISODES = 1024
"""Episodes that are compared, each with each: the first ones, for a large step tells no more by all."""


def dependence_figures(
    session: Session, stage: OnlineSettings, learner: Learner, episodes: Sequence[Trajectory], step: int
) -> dict[str, float]:
    """Of the first turns of `episodes` of `step` (from 0): by their texts, and every `reasoning_check_every` steps by
    the learner's weights as they are. Nothing where there is no reasoning to compare."""
    reasoned = [t for t in episodes if t.steps and t.steps[0].action.reasoning and not t.errored][:MOST_EPISODES]
    figures: dict[str, float] = {}
    found = sibling_retrieval([t.steps[0].action.reasoning for t in reasoned], [t.task_id for t in reasoned])
    if found is not None:
        figures["reasoning_retrieval"] = found
    if stage.reasoning_check_every and step % stage.reasoning_check_every == 0:
        reasonings = [first_reasoning(t, session.loaded.renderer.text) for t in reasoned]
        measured = measured_dependence(learner, [one for one in reasonings if one], stage.micro_batch_tokens)
        if measured is not None:
            figures |= {"reasoning_information": measured.information, "prompt_retrieval": measured.retrieved}
    return figures
