"""Noise in a recipe: one number or a mapping, and a stage's own."""

from __future__ import annotations

import pytest

from deedrl.environments.noise import Noise
from deedrl.environments.suite.support.environment import SupportDesk
from deedrl.errors import ConfigError
from deedrl.pipeline.job import task_system_prompt
from deedrl.pipeline.noise_settings import NoiseSettings, chosen_noise
from deedrl.pipeline.recipe import config_hash, recipe_from
from deedrl.policies.scripted import ScriptedPolicy
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.rollouts.prompting import PromptVariant
from deedrl.rollouts.runner import run_episodes_sync

PLAIN = {"name": "n", "stages": [{"stage": "baseline"}, {"stage": "grpo"}, {"stage": "evaluate"}]}


def test_one_number_is_the_level_of_every_kind():
    recipe = recipe_from({**PLAIN, "environment": {"noise": 0.3}})
    assert chosen_noise(recipe.environment.noise) == Noise.at(0.3)


def test_without_noise_there_is_none():
    assert chosen_noise(recipe_from(PLAIN).environment.noise).levels() == {}


def test_a_mapping_sets_kinds_apart_from_the_rest():
    recipe = recipe_from({**PLAIN, "environment": {"noise": {"level": 0.2, "failures": 0.5, "stale": 0}}})
    levels = chosen_noise(recipe.environment.noise).levels()
    assert (levels["failures"], levels["wording"], "stale" in levels) == (0.5, 0.2, False)


def test_a_stage_has_its_own():
    recipe = recipe_from(PLAIN, ["environment.noise=0.2", "stages.evaluate.noise=0", "stages.grpo.noise.failures=1"])
    baseline, grpo, evaluate = recipe.stages
    own = recipe.environment.noise
    assert chosen_noise(baseline.noise, own) == Noise.at(0.2)
    assert chosen_noise(grpo.noise, own) == Noise(failures=1.0)
    assert chosen_noise(evaluate.noise, own).levels() == {}


def test_levels_out_of_range_and_unknown_kinds_are_refused():
    with pytest.raises(ConfigError, match=r"environment\.noise"):
        recipe_from({**PLAIN, "environment": {"noise": 2}})
    with pytest.raises(ConfigError, match=r"environment\.noise\.failure'.*failures"):
        recipe_from({**PLAIN, "environment": {"noise": {"failure": 0.1}}})


def test_noise_is_part_of_the_config_hash():
    hashes = {config_hash(recipe_from({**PLAIN, "environment": {"noise": noise}})) for noise in (0, 0.1, 0.2)}
    assert len(hashes) == 3


def test_settings_name_every_kind():
    assert set(NoiseSettings.__struct_fields__) - {"level"} == set(Noise.__struct_fields__)


def test_what_was_played_under_noise_is_taught_under_the_prompt_it_was_played_with():
    noise, shown = Noise.at(1.0), {}

    def script(request):
        shown[request.episode_id] = request.messages[0].content
        return ""

    tasks = {task.id: task for task in SupportDesk.generate_tasks("train", 8, 0)}
    specs = [EpisodeSpec(task=task, episode_id=name, seed=5, noise=noise) for name, task in tasks.items()]
    played = run_episodes_sync(specs, environment=SupportDesk, policy=ScriptedPolicy(script), rubric=None)
    for trajectory in played:
        recorded = Noise.from_levels(trajectory.provenance.noise)
        taught = task_system_prompt(SupportDesk, tasks[trajectory.task_id], PromptVariant(), recorded)
        assert taught == shown[trajectory.episode_id]
    assert len({prompt.count("\n- ") for prompt in shown.values()}) > 1
