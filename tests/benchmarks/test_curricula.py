"""The comparison of curricula in small: jobs by hand, gradients that climb, and runs that come out alike again."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from random import Random

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "curricula.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("curricula", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["curricula"] = module
    spec.loader.exec_module(module)
    return module


def test_a_task_is_solved_as_often_as_all_its_steps_succeed(script):
    job = script.ladder(36, Random(0))
    learner = script.Learner(job, 1.0)
    task = next(task for task in job.pool if task.difficulty == "level 3")
    own = job.steps[task.id][-1][1]
    sigmoid = script._sigmoid
    assert learner.success(task.id) == pytest.approx(sigmoid(0.85) * sigmoid(-1.0) * sigmoid(-1.0 - own))
    rng = Random(1)
    wins = sum(learner.play(task.id, rng)[0] for _ in range(4000))
    assert wins / 4000 == pytest.approx(learner.success(task.id), abs=0.015)
    assert learner.episodes == 4000


def test_the_gradient_is_that_of_success(script):
    job = script.ladder(36, Random(0))
    learner = script.Learner(job, 1.0)
    task = next(task for task in job.pool if task.difficulty == "level 2")
    skill, less = job.steps[task.id][0]
    rng = Random(2)
    # Of the likelihood of success: E[won * gradient] = d success / d skill = success * (1 - chance).
    played = [learner.play(task.id, rng) for _ in range(20_000)]
    mean = sum(won * gradient[skill] for won, gradient in played) / len(played)
    chance = script._sigmoid(learner.skills[skill] - less)
    assert mean == pytest.approx(learner.success(task.id) * (1 - chance), abs=0.005)


@pytest.mark.parametrize("method", ["uniform", "quota, profiled", "frontier", "frontier, refill"])
def test_every_method_learns_and_comes_out_alike_again(script, method):
    def once():
        job = script.shared(30, Random(1))
        return script.run(job, script.METHODS[method], 4.0, 0, target=0.7, most=20_000)

    first = once()
    assert first.episodes is not None
    assert first.episodes > (120 if "profiled" in method else 0)
    assert first == once()


def test_a_run_that_misses_its_target_says_so(script):
    outcome = script.run(script.shared(30, Random(1)), script.METHODS["uniform"], 1e-6, 0, target=0.7, most=100)
    assert outcome.episodes is None
