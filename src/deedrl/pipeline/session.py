"""What the stages of one run share: the model, the environment, the tasks, and playing episodes into the store."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from deedrl.environments.environment import Environment
from deedrl.environments.loading import load_environment
from deedrl.errors import CheckpointError, ConfigError
from deedrl.evaluation.metrics import completion_rate
from deedrl.pipeline.alarms import mute_alarm, timeout_alarm
from deedrl.pipeline.bounds import training_findings
from deedrl.pipeline.checkpoint import CheckpointFolder
from deedrl.pipeline.context import Bar, StageContext
from deedrl.pipeline.job import (
    environment_maker,
    recipe_limits,
    recipe_prompt,
    recipe_rubric,
    split_sizes,
    task_pool,
)
from deedrl.pipeline.noise_settings import NoiseSetting, chosen_noise
from deedrl.pipeline.rendering import check_room
from deedrl.policies.local.device import chosen_device
from deedrl.policies.local.model import LoadedModel, add_adapter, load_adapter, load_model
from deedrl.policies.local.policy import LocalPolicy
from deedrl.policies.policy import Policy
from deedrl.rewards.lint import lint_rubric
from deedrl.rewards.rubric import Rubric
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.rollouts.failures import FailurePolicy
from deedrl.rollouts.limits import Limits
from deedrl.rollouts.prompting import PromptVariant
from deedrl.rollouts.runner import run_episodes_sync
from deedrl.store.jsonl import TrajectoryStore
from deedrl.tasks.pool import TaskPool, check_disjoint
from deedrl.training import processes
from deedrl.training.sharding import gather, release, shard_weights
from deedrl.types import Provenance, SamplingParams, Source, Split, Task, Trajectory

if TYPE_CHECKING:
    from deedrl.pipeline.reward_model_folder import PlacedRewardModel

HELD_OUT: tuple[Split, ...] = ("validation", "test", "test_unseen")


class Session:
    """Opens things on first use and keeps them for the run."""

    def __init__(self, context: StageContext, *, trained: bool = True) -> None:
        self.context = context
        self.recipe = context.recipe
        self.run = context.run
        self._policies: dict[bool, LocalPolicy] = {}
        self._trained = trained
        self._stores: dict[str, TrajectoryStore] = {}
        self._earlier: dict[str, set[str]] = {}
        self.replay_checked: set[str] = set()
        """Stages of whose episodes a sample was replayed; see `replay_check`."""
        self.reward_models: dict[Path, PlacedRewardModel] = {}
        """Reward models beside the policy's adapter, by the folder they were saved in; see `learned_terms`."""
        finished = [self.run.finished(stage.title) for stage in self.recipe.stages]
        versions = [result.metrics.get("policy_version") for result in finished if result]
        self.policy_version = str(versions[-1]) if trained and versions else "base"

    # ------------------------------------------------------------ the job

    @cached_property
    def environment_class(self) -> type[Environment]:
        return load_environment(self.recipe.environment.ref)

    @cached_property
    def environment(self) -> Callable[[], Environment]:
        return environment_maker(self.recipe, self.environment_class)

    @cached_property
    def rubric(self) -> Rubric:
        """What episodes are played under; `with_learned_terms` adds the reward models."""
        return recipe_rubric(self.recipe, self.environment_class)

    @cached_property
    def pools(self) -> dict[Split, TaskPool]:
        """Tasks of every split the recipe has; no two splits share content (case F22)."""
        sizes, cls = split_sizes(self.recipe), self.environment_class
        pools = {split: task_pool(self.recipe, cls, split, count) for split, count in sizes.items()}
        check_disjoint(*pools.values())
        return pools

    def tasks(self, split: Split) -> list[Task]:
        if split not in self.pools:
            raise ConfigError(f"the recipe has no tasks for split '{split}'; set tasks.{split} above 0 or give a file")
        return list(self.pools[split])

    @cached_property
    def limits(self) -> Limits:
        return recipe_limits(self.recipe)

    def lint(self) -> None:
        """Says plainly what is wrong with the rubric and with bounds of training, before anything is trained."""
        for finding in lint_rubric(self.rubric):
            self.context.progress.warn(f"rubric: {finding}")
        for bound in training_findings(self.recipe):
            self.context.progress.warn(bound)

    @property
    def prompt(self) -> PromptVariant:
        return recipe_prompt(self.recipe)

    # ------------------------------------------------------------ the model

    @cached_property
    def loaded(self) -> LoadedModel:
        """The model with the run's latest adapter, the recipe's start adapter, or a fresh one."""
        loaded = self._loaded()
        if processes.shards_weights():
            shard_weights(loaded.model)
        return loaded

    def _loaded(self) -> LoadedModel:
        settings = self.recipe.model
        source = settings.path
        if self._trained and settings.adapter is None and (self.run.adapter_folder / "config.json").is_file():
            source = str(self.run.adapter_folder)
        # All weights are trained where there is no adapter, and in bf16 small updates round to nothing.
        dtype = "fp32" if settings.adapter is None and settings.dtype == "auto" else settings.dtype
        base = load_model(
            source, dtype=dtype, chat_template=settings.chat_template, device=chosen_device(settings.device)
        )
        if settings.adapter is None:
            for parameter in base.model.parameters():
                parameter.requires_grad_(True)
            return base
        if self._trained and (self.run.adapter_folder / "adapter_config.json").is_file():
            return load_adapter(base, self.run.adapter_folder)
        if settings.start_adapter is not None:
            return load_adapter(base, Path(settings.start_adapter))
        adapter = settings.adapter
        target = adapter.target if isinstance(adapter.target, str) else list(adapter.target)
        return add_adapter(
            base,
            rank=adapter.rank,
            alpha=adapter.alpha,
            dropout=adapter.dropout,
            target=target,
            seed=self.context.seed("adapter") % 2**31,
        )

    def policy(self, *, guided: bool = False) -> LocalPolicy:
        """The policy with the current weights; `guided` constrains decoding to the schema of an action.

        The other one rests, for each holds caches and a copy of the weights; no episode of it may be in flight.
        """
        self._gather()
        if not self._policies:
            check_room(self.loaded, self.environment_class, self.tasks("train"), self.prompt, self.recipe)
        if (other := self._policies.get(not guided)) is not None:
            other.rest()
        if guided not in self._policies:
            self._policies[guided] = LocalPolicy(
                self.loaded.model,
                self.loaded.renderer,
                max_rows=self.recipe.concurrency,
                guided=guided,
                version=self.policy_version,
            )
        return self._policies[guided]

    def weights_changed(self, version: str) -> None:
        """Tells every policy that the weights are new; `version` names them in trajectories."""
        self.policy_version = version
        for policy in self._policies.values():
            policy.weights_changed(version)
        self._release()

    def rest_policies(self) -> None:
        """Gives back the memory that sampling needs, before an update needs its own."""
        for policy in self._policies.values():
            policy.rest()
        self._release()

    def _gather(self) -> None:
        """Weights that are in shards are whole until `_release`; to be called in all processes alike."""
        if processes.shards_weights():
            gather(self.loaded.model)

    def _release(self) -> None:
        """Weights that were whole for sampling are in shards again."""
        if processes.shards_weights() and "loaded" in self.__dict__:
            release(self.loaded.model)

    def untouched(self) -> Session:
        """A session with the model as the recipe gives it, even if this run has trained it since."""
        return Session(self.context, trained=False) if self.run.adapter_folder.exists() else self

    def save_policy(self) -> None:
        """Replaces the run's adapter (or model folder) by the current weights; the old one stays until then."""
        self._gather()
        if self.run.writes:
            self._write_policy()
        processes.wait()

    def _write_policy(self) -> None:
        target = self.run.adapter_folder
        scratch = target.with_name(".adapter-new")
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            self.loaded.save(scratch)
        except Exception as error:
            shutil.rmtree(scratch, ignore_errors=True)
            # safetensors and tokenizers are written in Rust and have classes of their own for a full disk.
            if not isinstance(error, OSError) and "(os error " not in str(error):
                raise
            raise CheckpointError(
                f"{target}: cannot write the policy ({error}); what was saved before is intact; make room and run the "
                "same command again to resume"
            ) from error
        self.run.replace_adapter(scratch)

    def checkpoints(self, stage: str) -> CheckpointFolder:
        return self.run.checkpoints(stage, self.context.progress.warn)

    # ------------------------------------------------------------ episodes

    def sampling(self, temperature: float | None = None) -> SamplingParams:
        return self.recipe.sampling.params(temperature)

    def spec(
        self,
        task: Task,
        episode_id: str,
        *,
        stage: str,
        sampling: SamplingParams,
        source: Source = "policy",
        prompt: PromptVariant | None = None,
        noise: NoiseSetting | None = None,
    ) -> EpisodeSpec:
        """One episode of this run; its seed depends on its id alone. `noise` None is the recipe's own."""
        prompt = prompt or self.prompt
        return EpisodeSpec(
            task=task,
            episode_id=episode_id,
            seed=self.context.seed("episode", episode_id),
            sampling=sampling,
            prompt=prompt,
            noise=chosen_noise(noise, self.recipe.environment.noise),
            provenance=Provenance(
                run_id=self.run.run_id,
                stage=stage,
                config_hash=self.run.config_hash,
                source=source,
                prompt_variant=prompt.name,
            ),
        )

    def store(self, name: str) -> TrajectoryStore:
        if name not in self._stores:
            path = self.run.trajectories / f"{name}.jsonl"
            self._stores[name] = TrajectoryStore(path, run_id=self.run.run_id, config_hash=self.run.config_hash)
        return self._stores[name]

    def _stored(self, name: str, wanted: set[str]) -> dict[str, Trajectory]:
        """The sound episodes among `wanted` that are in the store; it is read only if it may hold some of them."""
        store = self.store(name)
        if name not in self._earlier:
            self._earlier[name] = store.episode_ids()
        if self._earlier[name].isdisjoint(wanted):
            return {}
        return {t.episode_id: t for t in store if t.episode_id in wanted and not t.errored}

    def keep(self, store: str, trajectories: Iterable[Trajectory]) -> None:
        """Appends what all processes have to a store, once."""
        if self.run.writes:
            self.store(store).append_many(trajectories)
        processes.wait()

    def play(
        self, specs: Sequence[EpisodeSpec], *, store: str, policy: Policy, bar: Bar, concurrency: int | None = None
    ) -> list[Trajectory]:
        """Trajectories of `specs` in order; those already in the store are not played again (cases E08, E14).

        Of several processes each plays its share, and stores what it has played. Siblings that follow each other stay
        together: they share the computation of what they begin with.
        """
        target = self.store(store)
        done = processes.from_first(lambda: self._stored(store, {spec.episode_id for spec in specs}))
        siblings = groupby((spec for spec in specs if spec.episode_id not in done), lambda spec: spec.task.id)
        missing = [spec for group in processes.share([list(specs) for _, specs in siblings]) for spec in group]
        if done:
            bar.advance(len(done))
        own: list[Trajectory] = []

        def keep(trajectory: Trajectory) -> None:
            target.append(trajectory)
            own.append(trajectory)
            bar.advance(completion=completion_rate([*done.values(), *own]).value)

        if missing:
            run_episodes_sync(
                missing,
                environment=self.environment,
                policy=policy,
                rubric=self.rubric,
                limits=self.limits,
                failures=FailurePolicy(**asdict(self.recipe.failures)),
                concurrency=concurrency or self.recipe.concurrency,
                on_trajectory=keep,
            )
        done |= {trajectory.episode_id: trajectory for trajectory in processes.everyones(own)}
        self._earlier.setdefault(store, set()).update(done)
        played = [done[spec.episode_id] for spec in specs]
        for alarm in (mute_alarm(played, self.recipe), timeout_alarm(played, self.recipe)):
            if alarm is not None:
                self.context.progress.warn(f"{store}: {alarm}")
        return played
