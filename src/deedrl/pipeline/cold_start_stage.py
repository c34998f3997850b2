"""The stage `cold_start`: rejection sampling of stable, efficient successes, and demonstrations; failures are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import get_args

import msgspec

from deedrl.config import require
from deedrl.evaluation.metrics import Metrics, compute_metrics
from deedrl.parsing.plain import plain_tool
from deedrl.pipeline.context import Bar
from deedrl.pipeline.session import Session
from deedrl.pipeline.stage_settings import NEGATIVES, POSITIVES, ColdStart
from deedrl.rollouts.demonstration import demonstration_policy
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.rollouts.prompting import DISTRACTORS, PromptVariant
from deedrl.seeding import stream
from deedrl.tasks.quotas import draw_in_turn
from deedrl.types import Record, Source, Task, Trajectory


class ColdStartReport(Record, frozen=True):
    """Where the supervised data came from; the report shows it as it is."""

    sampled: int
    successes: int
    stable: int
    """Successes whose task also succeeded when sampled again often enough."""
    efficient: int
    """Stable successes short enough to be kept."""
    negatives: int
    sources: dict[str, int]
    """Kept trajectories by source: policy, guided, demonstration."""
    families: dict[str, int]
    """Kept trajectories by family of task."""


def cold_start_stage(session: Session, stage: ColdStart) -> tuple[Metrics | None, ColdStartReport]:
    """Fills the stores of positives and negatives; the metrics are those of the sampled episodes."""
    require(
        stage.guided_share == 0 or plain_tool(session.environment_class.tools.schemas()) is None,
        f"stages.{stage.title}.guided_share",
        f"expected 0 for {session.recipe.environment.ref}, which is answered in plain text: there is no schema that "
        f"could guide decoding; got {stage.guided_share:g}",
    )
    rng = stream(session.recipe.seed, "cold_start", stage.title)
    pool = session.tasks("train")
    _check_families(stage, {task.family for task in pool})
    tasks = draw_in_turn(pool, len(pool), rng)
    sampled_tasks, rest = tasks[: stage.tasks], tasks[stage.tasks :]
    sampled = _sample(session, stage, sampled_tasks)
    successes = [t for t in sampled if t.solved]
    stable = _stable(session, stage, successes, sampled_tasks)
    efficient = [t for t in stable if _efficient(t, stage.efficiency_ratio)]
    demonstrated = _demonstrate(session, stage, rest or tasks, len(efficient))
    failures = [t for t in sampled if t.solved is False]
    positives = efficient + demonstrated
    session.keep(POSITIVES, positives)
    session.keep(NEGATIVES, failures)
    sources = Counter(t.provenance.source for t in positives)
    report = ColdStartReport(
        sampled=len(sampled),
        successes=len(successes),
        stable=len(stable),
        efficient=len(efficient),
        negatives=len(failures),
        sources={source: sources[source] for source in get_args(Source)},
        families=dict(sorted(Counter(t.family for t in positives).items())),
    )
    return (compute_metrics(sampled) if sampled else None), report


def _check_families(stage: ColdStart, known: Set[str]) -> None:
    unknown = sorted(stage.demonstration_weights.keys() - known)
    require(
        not unknown,
        f"stages.{stage.title}.demonstration_weights",
        f"expected families of the training tasks, which are {', '.join(sorted(known))}; got {', '.join(unknown)}",
    )


def _sample(session: Session, stage: ColdStart, tasks: Sequence[Task]) -> list[Trajectory]:
    """`samples_per_task` episodes a task under rotating prompt variants, a share of them guided."""
    count = stage.samples_per_task
    guided = round(count * stage.guided_share)
    variants = [_variant(session, stage, index) for index in range(count)]
    labelled = [(f"sample-{index}", variant) for index, variant in enumerate(variants)]
    with session.context.progress.bar(f"{stage.title}: sampling", total=len(tasks) * count, unit="episode") as bar:
        found = _play(session, stage, tasks, labelled[:guided], True, bar)
        return found + _play(session, stage, tasks, labelled[guided:], False, bar)


def _play(
    session: Session,
    stage: ColdStart,
    tasks: Sequence[Task],
    rounds: Sequence[tuple[str, PromptVariant]],
    guided: bool,
    bar: Bar,
) -> list[Trajectory]:
    """An episode a task and round, all together: a step with many rows costs little more than one with few."""
    if not rounds:
        return []
    specs = [
        session.spec(
            task,
            f"{stage.title}-{label}-{task.id}",
            stage=stage.title,
            sampling=session.sampling(stage.temperature),
            source="guided" if guided else "policy",
            prompt=variant,
            noise=stage.noise,
        )
        for label, variant in rounds
        for task in tasks
    ]
    return session.play(specs, store=f"{stage.title}-samples", policy=session.policy(guided=guided), bar=bar)


def _variant(session: Session, stage: ColdStart, index: int) -> PromptVariant:
    name = stage.prompt_variants[index % len(stage.prompt_variants)]
    rng = stream(session.recipe.seed, "prompt_variant", stage.title, index)
    return msgspec.structs.replace(
        session.prompt,
        name=f"{name}+detailed" if stage.detailed_prompt else name,
        tool_order_seed=rng.randrange(2**31) if name == "tool_order" else None,
        distractor=rng.choice(DISTRACTORS) if name == "distractor" else None,
        detailed=stage.detailed_prompt,
    )


def _stable(
    session: Session, stage: ColdStart, successes: Sequence[Trajectory], tasks: Sequence[Task]
) -> list[Trajectory]:
    """The successes whose task succeeds again in at least `stability_share` of `stability_repeats` further samples."""
    by_id = {task.id: task for task in tasks}
    again = [by_id[task_id] for task_id in dict.fromkeys(t.task_id for t in successes)]
    if not again or not stage.stability_repeats:
        return list(successes)
    total = len(again) * stage.stability_repeats
    rounds = [(f"repeat-{repeat}", _variant(session, stage, 0)) for repeat in range(stage.stability_repeats)]
    with session.context.progress.bar(f"{stage.title}: is it luck?", total=total, unit="episode") as bar:
        episodes = _play(session, stage, again, rounds, stage.guided_share > 0, bar)
    wins = Counter(t.task_id for t in episodes if t.solved)
    needed = stage.stability_share * stage.stability_repeats
    return [t for t in successes if wins[t.task_id] >= max(needed, 1e-9)]


def _efficient(trajectory: Trajectory, ratio: float) -> bool:
    if trajectory.shortest_steps is None:
        return True
    return len(trajectory.own_steps) <= ratio * trajectory.shortest_steps


def _demonstrate(session: Session, stage: ColdStart, tasks: Sequence[Task], sampled: int) -> list[Trajectory]:
    """The environment's own solutions of `demonstrations` tasks, at most their allowed share of the positives."""
    count = stage.demonstrations
    if stage.max_demonstration_share < 1.0:
        count = min(count, int(sampled * stage.max_demonstration_share / (1 - stage.max_demonstration_share)))
    rng = stream(session.recipe.seed, "demonstrations", stage.title)
    if stage.demonstration_weights:
        tasks = draw_in_turn(tasks, len(tasks), rng, stage.demonstration_weights)
    chosen = [tasks[index % len(tasks)] for index in range(count)]
    specs: list[EpisodeSpec] = [
        session.spec(
            task,
            f"{stage.title}-demonstration-{index}-{task.id}",
            stage=stage.title,
            sampling=session.sampling(),
            source="demonstration",
            prompt=msgspec.structs.replace(session.prompt, name="distractor", distractor=rng.choice(DISTRACTORS))
            if "distractor" in stage.prompt_variants and rng.random() < 0.25
            else session.prompt,
            noise=stage.noise,
        )
        for index, task in enumerate(chosen)
    ]
    if not specs:
        return []
    policy = demonstration_policy(specs, session.environment_class)
    with session.context.progress.bar(f"{stage.title}: demonstrations", total=len(specs), unit="episode") as bar:
        played = session.play(specs, store=f"{stage.title}-demonstrations", policy=policy, bar=bar)
    unsolved = [t for t in played if not t.solved]
    if unsolved:
        reasons = [t.failure.message for t in unsolved if t.failure is not None]
        why = f" (e.g. {reasons[0]})" if reasons else ""
        session.context.progress.warn(
            f"{len(unsolved)} of {len(played)} demonstrations do not solve their task{why}; left out"
        )
    return [t for t in played if t.solved]
