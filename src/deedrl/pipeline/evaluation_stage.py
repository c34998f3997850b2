"""The stages `baseline` and `evaluate`: the current policy on held-out tasks."""

from __future__ import annotations

from deedrl.evaluation.metrics import Metrics, check_split, compute_metrics
from deedrl.evaluation.summary import UNSEEN_SUFFIX
from deedrl.pipeline.alarms import guessing_alarm
from deedrl.pipeline.session import HELD_OUT, Session
from deedrl.pipeline.stage_settings import Baseline, Evaluate
from deedrl.types import Split, Trajectory


def evaluate_stage(session: Session, stage: Baseline | Evaluate) -> dict[str, Metrics]:
    """Figures on the stage's split under ``metrics`` and, where asked, on ``test_unseen`` under ``unseen``."""
    sampling = session.sampling(stage.temperature)
    looks = {name for name, tool in session.environment_class.tools.items() if tool.read_only}
    episodes = play_split(session, stage, stage.split, stage.title)
    found = {"metrics": compute_metrics(episodes, sampling=sampling, evidence_tools=looks)}
    if stage.also_unseen:
        # Caches as long as its longer tickets need, in as many rows as the split before had, would be the most memory
        # of a whole run.
        session.rest_policies()
        unseen = play_split(session, stage, "test_unseen", stage.title + UNSEEN_SUFFIX)
        found["unseen"] = compute_metrics(unseen, sampling=sampling, evidence_tools=looks)
    guessing = guessing_alarm(found["metrics"].by_family)
    if guessing is not None and isinstance(stage, Evaluate):
        session.context.progress.warn(f"{stage.title}: {guessing}")
    return found


def play_split(session: Session, stage: Baseline | Evaluate, split: Split, store: str) -> list[Trajectory]:
    """Every task of the split, `repeats` times with other seeds; refuses tasks that are trained on (case F22)."""
    tasks = session.tasks(split)[: stage.tasks]
    if split in HELD_OUT:
        check_split(tasks, {task.id for task in session.tasks("train")})
    specs = [
        session.spec(
            task,
            # The same ids before and after: episodes are paired by task, repeat and seed.
            f"{split}-{task.id}-{repeat}",
            stage=stage.title,
            sampling=session.sampling(stage.temperature),
            noise=stage.noise,
        )
        for repeat in range(stage.repeats)
        for task in tasks
    ]
    with session.context.progress.bar(f"{stage.title} ({split})", total=len(specs), unit="episode") as bar:
        return session.play(specs, store=store, policy=session.policy(), bar=bar)
