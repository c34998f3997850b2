"""The recipe: everything a run depends on, as frozen settings with documented defaults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from deedrl.config import (
    Count,
    Many,
    ManyOrNone,
    NonNegative,
    PositiveInt,
    Seconds,
    Settings,
    Share,
    apply_override,
    convert,
    fingerprint,
    parse_override,
    read_yaml,
    require,
    require_text,
    to_plain,
)
from deedrl.errors import ConfigError, suggest
from deedrl.pipeline.dpo_settings import Dpo
from deedrl.pipeline.grpo_settings import Grpo
from deedrl.pipeline.noise_settings import NoiseSetting
from deedrl.pipeline.pair_settings import PairSettings
from deedrl.pipeline.ppo_settings import Ppo
from deedrl.pipeline.profile_settings import Profile
from deedrl.pipeline.reward_model_settings import RewardModelStage
from deedrl.pipeline.stage_base import OnlineSettings, StageSettings
from deedrl.pipeline.stage_settings import (
    AnyStage,
    Baseline,
    ColdStart,
    Evaluate,
    Mine,
    Sft,
)
from deedrl.types import SamplingParams, Split

__all__ = [
    "AnyStage",
    "Baseline",
    "ColdStart",
    "Dpo",
    "Evaluate",
    "Grpo",
    "Mine",
    "Ppo",
    "Profile",
    "Recipe",
    "RewardModelStage",
    "Sft",
    "StageSettings",
    "config_hash",
    "load_recipe",
    "recipe_from",
    "select_stages",
]


MAX_NAME_BYTES = 120
"""Longest name of a run or stage; files made from it have endings of their own."""


class AdapterSettings(Settings, frozen=True, kw_only=True):
    """A LoRA adapter in PEFT's terms."""

    rank: PositiveInt = 16
    """Rank r of the two factors; at most the model's hidden size."""
    alpha: Annotated[float, Meta(gt=0, le=1e6)] = 32.0
    """The update is scaled by alpha / rank."""
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Dropout before the adapter while training."""
    target: str | tuple[str, ...] = "all-linear"
    """Names of the linear layers that get an adapter, or ``all-linear``."""


class ModelSettings(Settings, frozen=True, kw_only=True):
    """Which model; in YAML also short as ``model: embedded``."""

    path: str = "embedded"
    """``embedded`` (SmolLM2-135M-Instruct), a local folder in transformers' format, or a hub id."""
    dtype: Literal["auto", "bf16", "fp32"] = "auto"
    """Number type of the base weights; ``auto`` is bf16 where the hardware multiplies it fast, else fp32."""
    device: Annotated[str, Meta(pattern=r"^[a-z]+(:[0-9]{1,4})?$")] = "auto"
    """Where it computes: ``auto`` (the accelerator that torch sees, else the processor), ``cpu``, ``cuda``, ``cuda:1``,
    …; a run may be resumed on another."""
    adapter: AdapterSettings | None = AdapterSettings()
    """The LoRA adapter that is trained; null trains all weights."""
    chat_template: str | None = None
    """``chatml`` or a file with a Jinja template, for models whose own template cannot carry training."""
    start_adapter: str | None = None
    """Folder of a PEFT adapter to start from instead of a fresh one."""


class EnvironmentSettings(Settings, frozen=True, kw_only=True):
    """Which environment; in YAML also short as ``environment: deedrl/SupportDesk-v0``."""

    ref: str = "deedrl/SupportDesk-v0"
    """A registered id, ``package.module:Class`` or ``path/file.py:Class``."""
    difficulties: tuple[str, ...] = ()
    """Only tasks of these difficulties; empty means all."""
    families: tuple[str, ...] = ()
    """Only tasks of these families; empty means all."""
    isolation: Literal["thread", "process"] = "thread"
    """Where tools run; a process can be killed when it hangs, a thread is cheaper."""
    noise: NoiseSetting = 0.0
    """How unreliable tools are: a level from 0 (not at all) to 1, or a mapping with levels of single kinds."""
    allow_unreplayable: tuple[str, ...] = ()
    """Names of tools whose results need not come again when stored episodes are replayed before training, or `ref`, for
    an environment that is not to be asked; see docs/replay.md."""


class TaskSettings(Settings, frozen=True, kw_only=True):
    """How many tasks of each split are generated from the seed, or the files they are read from."""

    train: Many = 320
    """Training tasks."""
    validation: ManyOrNone = 48
    """Held-out tasks that choose the best checkpoint; never reported as a result."""
    test: Many = 120
    """Held-out tasks of known families: the figure of the before/after table."""
    test_unseen: ManyOrNone = 60
    """Held-out tasks whose families and phrasings never occur in training; reported apart."""
    files: dict[Split, str] = {}
    """JSON-lines file for each split; a split named here is read instead of generated, and every task in its file
    must say that split."""


class PromptSettings(Settings, frozen=True, kw_only=True):
    """What the model is told beside the task."""

    detail: Literal["brief", "detailed"] = "brief"
    """How much of the environment's instructions and tool schemas the system prompt spells out."""
    system: str | None = None
    """Replaces the environment's instructions."""


class SamplingSettings(Settings, frozen=True, kw_only=True):
    """How the policy samples, in training and evaluation alike unless a stage overrides it."""

    temperature: NonNegative = 1.0
    """0 is greedy."""
    max_tokens: PositiveInt = 96
    """Tokens of one turn."""

    def params(self, temperature: float | None = None) -> SamplingParams:
        """As sampling parameters, with a stage's own `temperature` if it has one."""
        chosen = self.temperature if temperature is None else temperature
        return SamplingParams(temperature=chosen, max_tokens=self.max_tokens)


class LimitSettings(Settings, frozen=True, kw_only=True):
    """Where an episode ends if the job does not."""

    max_steps: PositiveInt = 8
    """Turns."""
    max_tokens_per_episode: PositiveInt = 2048
    """Tokens of the whole conversation, prompt included."""
    call_timeout_s: Seconds = 10.0
    """Seconds one tool call may take."""
    episode_timeout_s: Seconds = 300.0
    """Seconds one episode may take."""
    max_parse_failures: PositiveInt = 2
    """Failed parses in one turn that end the episode."""
    loop_warn: PositiveInt = 3
    """Equal calls with equal results in a row after which the model is warned."""
    loop_end: PositiveInt = 5
    """Equal calls with equal results in a row that end the episode."""


class FailureSettings(Settings, frozen=True, kw_only=True):
    """What happens on infrastructure trouble; such episodes are never trained on as reward 0."""

    retries: Count = 2
    """Fresh attempts of an episode before it is dropped with its reason."""
    max_failure_share: Share = 0.5
    """A stage stops with an error when more than this share of its episodes failed."""


class CheckpointSettings(Settings, frozen=True, kw_only=True):
    """How often training is saved and how much is kept."""

    every_steps: PositiveInt = 5
    """Optimiser steps between checkpoints."""
    keep_last: PositiveInt = 2
    """Latest checkpoints kept beside the best one."""


class ProcessSettings(Settings, frozen=True, kw_only=True):
    """What several processes of one run hold each; without meaning for a run of one."""

    shard: Literal["none", "optimiser", "weights"] = "none"
    """What each process holds of its pieces of the parameters only. ``optimiser``: optimiser states (ZeRO stage 1);
    ``weights``: these, gradients and weights (ZeRO stage 3, FSDP), but for sampling, which takes whole weights."""


class Recipe(Settings, frozen=True, kw_only=True):
    """What to train on what, stage by stage. `load_recipe` reads one from YAML."""

    name: str
    """Name of the run, as shown in reports and trackers."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Every random stream of the run derives from it."""
    model: ModelSettings = ModelSettings()
    environment: EnvironmentSettings = EnvironmentSettings()
    tasks: TaskSettings = TaskSettings()
    prompt: PromptSettings = PromptSettings()
    sampling: SamplingSettings = SamplingSettings()
    limits: LimitSettings = LimitSettings()
    rubric: dict[str, NonNegative] = {}
    """Weights of reward terms by name; a term left out keeps its weight in the environment's rubric. The name of a
    ``reward_model`` stage adds its model as a term, in stages that learn from the episodes they play."""
    failures: FailureSettings = FailureSettings()
    concurrency: Annotated[int, Meta(ge=1, le=10_000)] = 32
    """Episodes in flight at once."""
    checkpoints: CheckpointSettings = CheckpointSettings()
    processes: ProcessSettings = ProcessSettings()
    tracking: tuple[Literal["wandb", "trackio", "tensorboard"], ...] = ()
    """Trackers beside the console and ``metrics.jsonl``, which are always written."""
    stages: tuple[AnyStage, ...] = ()
    """Stages in the order they run."""

    def validate(self) -> None:
        """Raises `ConfigError` for values out of range or that do not go together."""
        convert(to_plain(self), Recipe)
        _require_folder_name(self.name, "name")
        require(bool(self.model.path), "model.path", "expected 'embedded', a folder or a hub id; got an empty text")
        require(
            bool(self.environment.ref),
            "environment.ref",
            "expected an id, package.module:Class or path/file.py:Class; got an empty text",
        )
        require(
            self.model.start_adapter is None or self.model.adapter is not None,
            "model.start_adapter",
            "expected model.adapter beside it, got null, which trains all weights and starts from no adapter",
        )
        if self.model.adapter is not None:
            target = self.model.adapter.target
            names = [target] if isinstance(target, str) else list(target)
            require(
                bool(names) and all(name.strip() for name in names),
                "model.adapter.target",
                f"expected names of layers such as [q_proj, v_proj], or all-linear; got {names or 'none'}",
            )
        require(bool(self.stages), "stages", "expected at least one stage, got none")
        for name, count in Counter(stage.title for stage in self.stages).items():
            require(count == 1, "stages", f"{count} stages are called '{name}'; give each its own name")
        for stage in self.stages:
            _require_folder_name(stage.title, f"stages.{stage.title}.name")
            stage.validate(f"stages.{stage.title}")
            self._validate_against_tasks(stage)
        require_text(to_plain(self))
        limits = self.limits
        require(
            limits.loop_warn < limits.loop_end,
            "limits.loop_warn",
            f"expected less than loop_end ({limits.loop_end}), got {limits.loop_warn}",
        )
        require(
            self.sampling.max_tokens < limits.max_tokens_per_episode,
            "sampling.max_tokens",
            f"expected less than limits.max_tokens_per_episode ({limits.max_tokens_per_episode}), "
            f"got {self.sampling.max_tokens}",
        )

    @property
    def learned_terms(self) -> tuple[str, ...]:
        """The reward models that `rubric` names."""
        models = {stage.title for stage in self.stages if isinstance(stage, RewardModelStage)}
        return tuple(name for name in self.rubric if name in models)

    def _validate_against_tasks(self, stage: AnyStage) -> None:
        path = f"stages.{stage.title}"
        generated = {"validation": self.tasks.validation, "test_unseen": self.tasks.test_unseen}

        def has(split: Split) -> bool:
            return split in self.tasks.files or generated.get(split, 1) > 0

        if isinstance(stage, Baseline | Evaluate):
            require(has(stage.split), f"{path}.split", f"tasks.{stage.split} is 0; give it tasks")
            require(
                not stage.also_unseen or has("test_unseen"),
                f"{path}.also_unseen",
                "tasks.test_unseen is 0; give it tasks or set also_unseen to false",
            )
        if isinstance(stage, OnlineSettings | Dpo) or (isinstance(stage, Sft) and stage.validate_every):
            require(has("validation"), path, "validation needs tasks; tasks.validation is 0")
        if isinstance(stage, OnlineSettings):
            require(
                self.sampling.temperature > 0 or stage.temperature is not None,
                f"{path}.temperature",
                "expected above 0: greedy siblings are equal and teach nothing; set it here or in sampling.temperature",
            )
            require(
                stage.max_staleness == 0 or self.model.adapter is not None,
                f"{path}.max_staleness",
                f"expected 0 with model.adapter: null, got {stage.max_staleness}: where all weights are trained, "
                "sampling shares some with a running update; set it to 0 or train an adapter",
            )
            require(
                stage.max_staleness == 0 or self.processes.shard != "weights",
                f"{path}.max_staleness",
                f"expected 0 with processes.shard: weights, got {stage.max_staleness}: a running update has the "
                "weights in shards, and sampling needs them whole; set it to 0 or shard to optimiser",
            )
            require(
                stage.max_staleness == 0 or not self.learned_terms,
                f"{path}.max_staleness",
                f"expected 0 where the rubric names a reward model ({', '.join(self.learned_terms)}), got "
                f"{stage.max_staleness}: it shares the model that a running update changes",
            )
        if isinstance(stage, PairSettings):
            stores = [store for other in self.stages for store in other.training_stores]
            stage.validate_among(path, stores, self.sampling.temperature)
        if isinstance(stage, RewardModelStage):
            require(
                self.model.adapter is not None,
                "model.adapter",
                f"expected an adapter with the stage '{stage.title}', whose model is another one on the same frozen "
                "base; got null, which trains all weights",
            )
            require(
                self.processes.shard != "weights",
                "processes.shard",
                f"expected optimiser or none with the stage '{stage.title}', got weights: its model has whole weights "
                "beside the policy's",
            )
        if isinstance(stage, Ppo):
            require(
                stage.critic != "adapter" or self.model.adapter is not None,
                f"{path}.critic",
                "expected value_head, got adapter, which shares the frozen base of an adapter that model.adapter is to "
                "describe; it is null here, and trains all weights",
            )
        if isinstance(stage, Mine) and stage.steps:
            require(
                any(isinstance(other, Grpo) for other in self.stages),
                f"{path}.steps",
                "training on mined tasks takes its settings from a grpo stage and the recipe has none; set steps to 0",
            )


def _require_folder_name(name: str, path: str) -> None:
    """Names become parts of paths in the run folder, which they must not lead out of; file systems end at 255 bytes."""
    usable = name.isprintable() and name == name.strip() and not name.startswith(".") and not set(name) & set("/\\")
    require(
        bool(name) and usable and len(name.encode()) <= MAX_NAME_BYTES,
        path,
        f"expected a name that a folder can have (printable, no slash, no dot or space in front, at most "
        f"{MAX_NAME_BYTES} bytes), got {name!r}",
    )


# Fields that change where results are kept, shown or called, never the results.
_LOCATION_FIELDS = ("name", "tracking", "checkpoints", "processes")
# Sections that may be written as one word, and the field that word goes to.
_SHORT_FORMS = {"model": "path", "environment": "ref"}


def recipe_from(data: dict[str, Any], overrides: Sequence[str] = (), origin: str = "") -> Recipe:
    """A validated recipe from plain data, with dotted ``path=value`` overrides applied in order."""
    for override in overrides:
        path, value = parse_override(override)
        if path in _SHORT_FORMS and isinstance(value, str):
            path = f"{path}.{_SHORT_FORMS[path]}"
        data = apply_override(_expanded(data), path, value)
    recipe = convert(_expanded(data), Recipe, origin)
    try:
        recipe.validate()
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}" if origin else str(error)) from None
    return recipe


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Reads, overrides and validates a recipe file; every problem is a `ConfigError` that names the dotted path."""
    return recipe_from(read_yaml(path), overrides, str(path))


def config_hash(recipe: Recipe) -> str:
    """SHA-256 (64 hex digits) of all fields that can change results; name, trackers, checkpoint rhythm and shards
    cannot, nor can what is let through, and the device no more than the number of processes: by rounding."""
    data = to_plain(recipe)
    data["model"] = {key: value for key, value in data["model"].items() if key != "device"}
    # A run that was stopped for it goes on once it is allowed.
    data["environment"] = {key: value for key, value in data["environment"].items() if key != "allow_unreplayable"}
    return fingerprint({key: value for key, value in data.items() if key not in _LOCATION_FIELDS})


def select_stages(recipe: Recipe, kinds: Collection[str], name: str | None = None) -> list[str]:
    """Names of the recipe's stages of these kinds, or the one called `name`; none is a `ConfigError`."""
    titles = [stage.title for stage in recipe.stages if stage.kind in kinds]
    if name is not None:
        if name not in titles:
            raise ConfigError(f"the recipe has no such stage '{name}'{suggest(name, titles)}")
        return [name]
    if not titles:
        wanted = " or ".join(kinds)
        present = ", ".join(stage.title for stage in recipe.stages)
        raise ConfigError(f"expected a {wanted} stage in the recipe, which has {present}; add one under 'stages:'")
    return titles


def _expanded(data: dict[str, Any]) -> dict[str, Any]:
    return {
        key: {_SHORT_FORMS[key]: value} if key in _SHORT_FORMS and isinstance(value, str) else value
        for key, value in data.items()
    }
