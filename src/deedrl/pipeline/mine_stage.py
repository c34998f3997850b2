"""The stage `mine`: find tasks of low but non-zero success, cluster what goes wrong, train on them again."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from deedrl.pipeline.grpo_settings import Grpo
from deedrl.pipeline.grpo_stage import train_policy
from deedrl.pipeline.online import shuffled_tasks
from deedrl.pipeline.session import Session
from deedrl.pipeline.stage_settings import Mine
from deedrl.seeding import stream
from deedrl.tasks.mining import Band, MinedPool, mine, training_mix
from deedrl.types import Task


def mine_stage(session: Session, stage: Mine) -> dict[str, object]:
    """Writes the versioned pool to ``mined-<stage>.json``, trains on it, and returns clusters and figures."""
    pool = probe(session, stage)
    session.run.write_json(f"mined-{stage.title}.json", pool)
    clusters = [{"label": cluster.label, "tasks": len(cluster.task_ids)} for cluster in pool.clusters]
    found: dict[str, object] = {"pool_version": pool.version, "hard_tasks": len(pool.tasks), "clusters": clusters}
    found |= {"too_easy": pool.too_easy, "too_hard": pool.too_hard}
    if not pool.tasks:
        session.context.progress.say(f"{stage.title}: no task lies in the band {list(stage.band)}; nothing to train on")
        return found
    if not stage.steps:
        return found
    base = session.tasks("train")

    def tasks(step: int, count: int, weights: Mapping[str, float]) -> list[Task]:
        rng = stream(session.recipe.seed, stage.title, "mix", step)
        mixed = training_mix(pool, base, stage.hard_share, rng, count)
        distinct = list({task.id: task for task in mixed}.values())
        known = {task.id for task in distinct}
        spare = [t for t in shuffled_tasks(session, stage.title, base, step, count * 2, weights) if t.id not in known]
        return (distinct + spare)[:count]

    return found | train_policy(session, _training_settings(session, stage), tasks)


def probe(session: Session, stage: Mine) -> MinedPool:
    """Plays training tasks several times with the current policy, as training will sample, and mines the outcome."""
    tasks = shuffled_tasks(session, stage.title, session.tasks("train"), -1, stage.tasks)
    # At a lower temperature of evaluations a decided policy solves a task always or never.
    sampling = session.sampling(_training_settings(session, stage).temperature)
    specs = [
        session.spec(task, f"{stage.title}-probe-{task.id}-{attempt}", stage=stage.title, sampling=sampling)
        for task in tasks
        for attempt in range(stage.attempts)
    ]
    with session.context.progress.bar(f"{stage.title}: probing", total=len(specs), unit="episode") as bar:
        episodes = session.play(specs, store=f"{stage.title}-probe", policy=session.policy(), bar=bar)
    low, high = stage.band
    return mine(tasks, episodes, band=Band(above=max(low - 1e-9, 0.0), up_to=high))


def _training_settings(session: Session, stage: Mine) -> Grpo:
    """The recipe's last grpo stage with this stage's name, steps and (by default halved) learning rate."""
    grpo = [other for other in session.recipe.stages if isinstance(other, Grpo)][-1]
    return msgspec.structs.replace(
        grpo,
        name=stage.title,
        steps=stage.steps,
        learning_rate=stage.learning_rate or grpo.learning_rate / 2,
        final_learning_rate=0.0,
        schedule="constant",
        warmup_steps=0,
        patience_steps=0,
        curriculum=None,
    )
