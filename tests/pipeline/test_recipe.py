from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from deedrl.config import dump_yaml, parse_yaml, to_plain
from deedrl.errors import ConfigError
from deedrl.pipeline.recipe import Grpo, Recipe, Sft, config_hash, load_recipe, recipe_from, select_stages

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
STAGES = [{"stage": "baseline"}, {"stage": "sft", "steps": 2}, {"stage": "grpo"}, {"stage": "evaluate"}]


def made(*overrides: str, **changes: Any) -> Recipe:
    return recipe_from({"name": "tiny", "seed": 3, "stages": STAGES, **changes}, overrides)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_recipes_are_valid_and_survive_a_round_trip(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe_from(parse_yaml(dump_yaml(to_plain(recipe)), "x")) == recipe


def test_the_quickstart_has_enough_tasks() -> None:
    tasks = load_recipe(RECIPES / "quickstart.yaml").tasks
    assert tasks.train >= 300
    assert tasks.test >= 120


def test_the_7b_recipe_has_the_usual_values() -> None:
    recipe = load_recipe(RECIPES / "support-7b-lora.yaml")
    grpo = next(stage for stage in recipe.stages if isinstance(stage, Grpo))
    assert 2000 <= grpo.steps <= 5000
    assert (grpo.learning_rate, grpo.final_learning_rate, grpo.schedule) == (5e-6, 1e-6, "linear")
    assert 0.01 <= grpo.kl_coefficient <= 0.05
    assert (grpo.max_grad_norm, grpo.validate_every) == (1.0, 500)
    assert grpo.patience_steps >= 1000


def test_sections_may_be_one_word() -> None:
    recipe = made(model="some/model", environment="job.py:Job")
    assert recipe.model.path == "some/model"
    assert recipe.environment.ref == "job.py:Job"


def test_overriding_the_model_by_one_word_keeps_its_other_settings() -> None:
    recipe = made("model=other", model={"path": "some", "dtype": "fp32"})
    assert (recipe.model.path, recipe.model.dtype) == ("other", "fp32")


def test_override_of_a_stage() -> None:
    grpo = made("stages.grpo.learning_rate=1e-4").stages[2]
    assert isinstance(grpo, Grpo)
    assert grpo.learning_rate == 1e-4


def test_unknown_override_is_the_same_error_as_an_unknown_key() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'stages\.grpo\.lerning_rate'; did you mean 'learning_rate'"):
        made("stages.grpo.lerning_rate=1")


def test_unknown_stage_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown stage 'gropo' .*did you mean 'grpo'"):
        made(stages=[{"stage": "gropo"}])


def test_stage_without_its_kind_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"stages\.0: expected a key 'stage'"):
        made(stages=[{"steps": 3}])


def test_a_target_that_is_first_looked_at_after_the_last_step_is_refused() -> None:
    settings = ("validate_every=1", "target_completion=0.5", "validate_from=99")
    with pytest.raises(ConfigError, match=r"stages\.sft\.validate_from: expected at most steps \(\d+\)"):
        made(*(f"stages.sft.{setting}" for setting in settings))


def test_C02_group_of_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"stages\.grpo\.group_size: expected at least 2, got 1"):
        made("stages.grpo.group_size=1")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=-1", "seed: expected int >= 0, got -1"),
        ("stages.grpo.clip_low=1", "stages.grpo.clip_low: expected float < 1"),
        ("stages.grpo.clip_high=.nan", "got nan"),
        ("stages.grpo.clip_high=.inf", "got inf"),
        ("stages.grpo.advantage=gae", "expected one of dr_grpo, grpo, rloo; got 'gae'"),
        ("stages.grpo.patience_steps=5", None),
        ("stages.sft.epochs=2", "expected exactly one of steps and epochs"),
        ("stages.sft.target_completion=0.7", "stages.sft.target_completion: expected validate_every above 0"),
        ("stages.sft.target_family_completion=0.2", "target_family_completion: expected target_completion with it"),
        ("stages.sft.final_learning_rate=1", "expected at most learning_rate"),
        ("tasks.validation=0", "validation needs tasks"),
        ("tasks.test_unseen=0", None),
        ("stages.evaluate.also_unseen=yes", "expected bool, got 'yes'"),
        ("sampling.temperature=0", "greedy siblings are equal"),
        ("sampling.max_tokens=5000", "expected less than limits.max_tokens_per_episode"),
        ("limits.loop_warn=9", "expected less than loop_end"),
        ("stages=[]", "expected at least one stage"),
        ("tracking=[wandbb]", "did you mean 'wandb'"),
        ("tasks.files.trian=x", "did you mean 'train'"),
        ("name=../elsewhere", "name: expected a name that a folder can have"),
        ("name=''", "name: expected a name that a folder can have"),
        ("stages.sft.name=a/b", "stages.a/b.name: expected a name that a folder can have"),
        ("stages.sft.name=..", "expected a name that a folder can have"),
        ('stages.sft.name="a\\0b"', "expected a name that a folder can have"),
        ("stages.sft.name=" + "n" * 300, "at most 120 bytes"),
        ("stages.sft.name=éducation 2", None),
        ("stages.sft.learning_rate=1e300", "stages.sft.learning_rate: expected float <= 1.0, got 1e+300"),
        ("stages.sft.learning_rate=.inf", "stages.sft.learning_rate: expected float <= 1.0, got inf"),
        ("stages.grpo.learning_rate=.nan", "stages.grpo.learning_rate: expected float > 0.0, got nan"),
        ("limits.call_timeout_s=1e20", "limits.call_timeout_s: expected float <= 1000000.0"),
        ("concurrency=99999999999", "concurrency: expected int <= 10000"),
        ("model.adapter.alpha=1e300", "model.adapter.alpha: expected float <= 1000000.0"),
        ("model.adapter.target=[]", "model.adapter.target: expected names of layers such as [q_proj, v_proj]"),
        ("model.adapter.target=''", "model.adapter.target: expected names of layers such as [q_proj, v_proj]"),
        ('model.path="a\\0b"', "model.path: expected text without NUL"),
        ('prompt.system="\\ud800"', "prompt.system: expected text without NUL and halves of surrogate pairs"),
        ("tasks.train=2000000000", "tasks.train: expected int <= 1000000"),
        ("stages.sft.batch_size=2000000000", "stages.sft.batch_size: expected int <= 1000000"),
        ("model.path=''", "model.path: expected 'embedded', a folder or a hub id"),
        ("environment.ref=''", "environment.ref: expected an id"),
        ("stages.sft.stage=[a]", "unknown stage ['a'] (list); known: baseline"),
    ],
)
def test_values_are_checked(override: str, message: str | None) -> None:
    if message is None:
        made(override)
        return
    with pytest.raises(ConfigError) as caught:
        made(override)
    assert message in str(caught.value)


def test_an_adapter_to_start_from_needs_one_to_train() -> None:
    with pytest.raises(ConfigError, match=r"model\.start_adapter: expected model\.adapter beside it, got null"):
        made("model.adapter=null", "model.start_adapter=some/adapter")


def test_values_of_recipes_built_in_python_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="concurrency: expected int >= 1, got 0"):
        msgspec.structs.replace(made(), concurrency=0).validate()


def test_early_stopping_needs_validations() -> None:
    with pytest.raises(ConfigError, match="early stopping needs validations"):
        made("stages.grpo.patience_steps=5", "stages.grpo.validate_every=0")


def test_evaluating_a_split_without_tasks_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"stages\.evaluate\.also_unseen: tasks\.test_unseen is 0"):
        made("tasks.test_unseen=0", "stages.evaluate.also_unseen=true")


def test_mining_that_trains_needs_grpo_settings() -> None:
    mine = {"stage": "mine", "steps": 2}
    with pytest.raises(ConfigError, match="has none; set steps to 0"):
        made(stages=[mine])
    assert made(stages=[{**mine, "steps": 0}]).stages[0].title == "mine"


def test_a_cold_start_needs_a_source() -> None:
    with pytest.raises(ConfigError, match="expected tasks or demonstrations above 0"):
        made(stages=[{"stage": "cold_start", "tasks": 0}])


def test_two_stages_of_one_kind_need_names() -> None:
    twice = [{"stage": "sft", "steps": 1}, {"stage": "sft", "steps": 1}]
    with pytest.raises(ConfigError, match="2 stages are called 'sft'"):
        made(stages=twice)
    named = made(stages=[twice[0], {**twice[1], "name": "second"}])
    assert [stage.title for stage in named.stages] == ["sft", "second"]


def test_config_hash_ignores_what_cannot_change_results() -> None:
    same = made("name=other", "tracking=[wandb]", "checkpoints.keep_last=9")
    assert config_hash(same) == config_hash(made())
    assert config_hash(made("seed=4")) != config_hash(made())


def test_config_hash_does_not_depend_on_how_the_recipe_was_written() -> None:
    assert config_hash(made("sampling.temperature=1")) == config_hash(made(sampling={"temperature": 1.0}))


def test_select_stages_by_kind_and_name() -> None:
    recipe = made()
    assert select_stages(recipe, ["baseline", "evaluate"]) == ["baseline", "evaluate"]
    assert select_stages(recipe, ["baseline", "evaluate"], "evaluate") == ["evaluate"]


def test_selecting_a_stage_the_recipe_lacks_says_what_it_has() -> None:
    with pytest.raises(ConfigError, match="expected a mine stage in the recipe, which has baseline, sft, grpo"):
        select_stages(made(), ["mine"])
    with pytest.raises(ConfigError, match="no such stage 'evaluat'; did you mean 'evaluate'"):
        select_stages(made(), ["evaluate"], "evaluat")


def test_a_stage_knows_its_own_sampling_temperature() -> None:
    recipe = made()
    assert recipe.sampling.params().temperature == 1.0
    assert recipe.sampling.params(0.0).temperature == 0.0
    assert isinstance(recipe.stages[1], Sft)


@pytest.mark.parametrize(
    ("every", "start", "expected"),
    [
        (0, 0, []),
        (0, 5, []),
        (3, 0, [3, 6, 9]),
        (3, 3, [3, 6, 9]),
        (3, 4, [6, 9]),
        (3, 7, [9]),
        (3, 10, []),
        (1, 8, [8, 9, 10]),
    ],
)
def test_sft_validates_at_multiples_from_a_step_on(every: int, start: int, expected: list[int]) -> None:
    sft = made(f"stages.sft.validate_every={every}", f"stages.sft.validate_from={start}").stages[1]
    assert isinstance(sft, Sft)
    assert [done for done in range(1, 11) if sft.validates(done)] == expected
