"""Runs a recipe's stages in order; every finished stage is skipped on the next call with the same run folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from deedrl.config import to_plain
from deedrl.errors import ConfigError
from deedrl.evaluation.metrics import Metrics
from deedrl.evaluation.summary import UNSEEN_SUFFIX, StageSummary, Summary, write_summary
from deedrl.memory import peak_gb
from deedrl.pipeline.cold_start_stage import cold_start_stage
from deedrl.pipeline.context import Progress, StageContext
from deedrl.pipeline.dpo_settings import Dpo
from deedrl.pipeline.dpo_stage import dpo_stage
from deedrl.pipeline.evaluation_stage import evaluate_stage
from deedrl.pipeline.grpo_settings import Grpo
from deedrl.pipeline.grpo_stage import grpo_stage
from deedrl.pipeline.mine_stage import mine_stage
from deedrl.pipeline.own_recipe import load_own_recipe
from deedrl.pipeline.ppo_settings import Ppo
from deedrl.pipeline.ppo_stage import ppo_stage
from deedrl.pipeline.profile_settings import Profile
from deedrl.pipeline.profile_stage import profile_stage
from deedrl.pipeline.recipe import Recipe
from deedrl.pipeline.replay_check import check_allowed
from deedrl.pipeline.reward_model_settings import RewardModelStage
from deedrl.pipeline.reward_model_stage import reward_model_stage
from deedrl.pipeline.run import ADAPTER, SUMMARY, Run, StageResult, latest_adapter
from deedrl.pipeline.session import Session
from deedrl.pipeline.sft_stage import sft_stage
from deedrl.pipeline.stage_settings import AnyStage, Baseline, ColdStart, Evaluate, Mine, Sft
from deedrl.policies.local.device import chosen_device, device_peak_gb
from deedrl.policies.local.model import export_merged, load_adapter, load_model
from deedrl.policies.local.source import check_adapter, check_weights
from deedrl.tracking.tracker import open_tracker


def run_recipe(recipe: Recipe, run: Run, progress: Progress, *, only: Collection[str] | None = None) -> None:
    """Runs the stages called `only` (None: all); writes ``summary.json`` after each stage."""
    device = chosen_device(recipe.model.device)
    names = ["jsonl", *recipe.tracking] if run.writes else []
    with open_tracker(names, run.folder, config=to_plain(recipe)) as tracker:
        session = Session(StageContext(recipe=recipe, run=run, tracker=tracker, progress=progress))
        session.lint()
        check_allowed(session)
        for stage in recipe.stages:
            if only is not None and stage.title not in only:
                continue
            if run.finished(stage.title) is not None:
                progress.say(f"{stage.title}: finished before, skipped")
                continue
            run.start_stage(stage.title)
            begin = time.monotonic()
            outcome = _run_stage(session, stage)
            outcome |= {"policy_version": session.policy_version, "peak_memory_gb": peak_gb()}
            if (of_device := device_peak_gb(device)) is not None:
                outcome["peak_device_memory_gb"] = of_device
            run.finish_stage(stage.title, time.monotonic() - begin, outcome)
            if run.writes:
                write_summary(run.folder / SUMMARY, summary_of(recipe, run))


def _run_stage(session: Session, stage: AnyStage) -> dict[str, Any]:
    """What the stage reports, as plain data: evaluation figures under ``metrics`` and ``unseen``, others by name."""
    match stage:
        case Baseline():
            return dict(msgspec.to_builtins(evaluate_stage(session.untouched(), stage)))
        case Evaluate():
            return dict(msgspec.to_builtins(evaluate_stage(session, stage)))
        case ColdStart():
            metrics, report = cold_start_stage(session, stage)
            return {"metrics": msgspec.to_builtins(metrics), **msgspec.to_builtins(report)}
        case Sft():
            return dict(sft_stage(session, stage))
        case Grpo():
            return dict(grpo_stage(session, stage))
        case Ppo():
            return dict(ppo_stage(session, stage))
        case Dpo():
            return dict(dpo_stage(session, stage))
        case RewardModelStage():
            return dict(reward_model_stage(session, stage))
        case Profile():
            return profile_stage(session, stage)
        case Mine():
            return mine_stage(session, stage)


def summary_of(recipe: Recipe, run: Run) -> Summary:
    """The summary of all stages finished so far; `before` and `after` are the first and last held-out evaluation."""
    stages: list[StageSummary] = []
    before: Metrics | None = None
    after: Metrics | None = None
    for stage in recipe.stages:
        result = run.finished(stage.title)
        if result is None:
            continue
        metrics = _metrics(result, "metrics")
        stages.append(StageSummary(name=stage.title, seconds=result.seconds, metrics=metrics))
        if (unseen := _metrics(result, "unseen")) is not None:
            stages.append(StageSummary(name=stage.title + UNSEEN_SUFFIX, seconds=0.0, metrics=unseen))
        if isinstance(stage, Baseline) and before is None:
            before = metrics
        if isinstance(stage, Evaluate):
            after = metrics
    return Summary(before=before, after=after, stages=tuple(stages))


def _metrics(result: StageResult, key: str) -> Metrics | None:
    raw = result.metrics.get(key)
    return msgspec.convert(raw, Metrics) if raw else None


def export_policy(run_folder: Path, target: Path, *, merge: bool) -> None:
    """Writes a run's policy to `target`: merged into a plain transformers folder, or as the PEFT adapter alone.

    Raises `ConfigError` if the run has not trained anything yet, and `ModelError` if what lies there is torn.
    """
    recipe = load_own_recipe(run_folder)
    adapter = latest_adapter(run_folder)
    if adapter is None:
        raise ConfigError(f"{run_folder}: expected a trained policy in {ADAPTER}/, found none; run its training first")
    # Looked at before it is copied: a torn file would be found only where it is used.
    (check_weights if recipe.model.adapter is None else check_adapter)(adapter)
    if not merge or recipe.model.adapter is None:
        shutil.copytree(adapter, target, dirs_exist_ok=True)
        return
    base = load_model(recipe.model.path, dtype=recipe.model.dtype, chat_template=recipe.model.chat_template)
    export_merged(load_adapter(base, adapter, trainable=False), target)
