"""Reasoning that stops depending on its input: estimates against enumeration, a planted collapse, a healthy policy."""

from __future__ import annotations

import math
import random

import pytest
import torch

from deedrl.pipeline.stability import collapse_alarm
from deedrl.training.dependence import (
    Reasoning,
    first_reasoning,
    information,
    measured_dependence,
    sibling_retrieval,
)
from deedrl.training.learner import Learner
from deedrl.training.losses import sft_loss
from deedrl.training.packing import pack
from deedrl.training.samples import TrainingSample
from deedrl.types import Action, Completion, Step, Trajectory

TABLE = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25], [0.0001, 0.0999, 0.1, 0.8]], dtype=torch.float64)
"""Chances of four reasonings under three prompts."""


def exact_information(table):
    prompts = len(table)
    marginal = table.mean(0)
    return float(sum((row * (row / marginal).log()).sum() for row in table) / prompts)


def test_the_mean_over_all_draws_is_the_mutual_information():
    mean = sum(
        float(chance) / len(TABLE) * information(TABLE[:, [drawn]].log().T, torch.tensor([prompt])).information
        for prompt, row in enumerate(TABLE)
        for drawn, chance in enumerate(row)
    )
    assert mean == pytest.approx(exact_information(TABLE), rel=1e-9)


def test_the_estimate_lies_between_nothing_and_the_logarithm_of_prompts():
    alike = information(torch.full((6, 3), -7.0), torch.tensor([0, 0, 1, 1, 2, 2]))
    assert alike.information == pytest.approx(0.0, abs=1e-12)
    assert alike.retrieved == pytest.approx(1 / 3)
    apart = torch.full((4, 4), -900.0).fill_diagonal_(-3.0)
    told = information(apart, torch.arange(4))
    assert told.information == pytest.approx(math.log(4))
    assert told.retrieved == 1.0
    wrong = information(apart, torch.tensor([1, 2, 3, 0]))
    assert wrong.retrieved == 0.0
    assert wrong.information < 0


# ---------------------------------------------------------------- a model


def learn(learner, pairs, steps):
    """Makes each reasoning likely after its prompt."""
    samples = [
        TrainingSample(
            episode_id=str(index),
            ids=(*prompt, *ids),
            action_mask=(False,) * len(prompt) + (True,) * len(ids),
            logprobs=(0.0,) * (len(prompt) + len(ids)),
        )
        for index, (prompt, ids) in enumerate(pairs)
    ]
    batches = pack(samples, micro_batch_tokens=4096)
    tokens = sum(batch.action_tokens for batch in batches)
    for _ in range(steps):
        learner.update(
            batches,
            lambda batch, logprobs: sft_loss(logprobs, torch.full_like(logprobs, 1 / tokens)),
            learning_rate=5e-3,
            max_grad_norm=1.0,
        )


def test_a_planted_collapse_is_found_in_the_models_own_likelihoods(tiny_models):
    """A model that answers each prompt in its own way, then learns to say the same to all."""
    models = tiny_models(["one two three"])
    loaded = models.load()
    for parameter in loaded.model.parameters():
        parameter.requires_grad_(True)
    learner = Learner(loaded)
    prompts = [tuple(models.ids(seed, 6)) for seed in range(4)]
    own = [tuple(models.ids(100 + seed, 5)) for seed in range(4)]
    learn(learner, list(zip(prompts, own, strict=True)), 40)
    healthy = measured_dependence(learner, [Reasoning(p, r) for p, r in zip(prompts, own, strict=True)], 4096)
    assert healthy is not None
    assert healthy.information > 0.9 * math.log(4)
    assert healthy.retrieved == 1.0
    learn(learner, [(prompt, own[0]) for prompt in prompts], 40)
    collapsed = measured_dependence(learner, [Reasoning(prompt, own[0]) for prompt in prompts], 4096)
    assert collapsed is not None
    assert collapsed.information < 0.1 * healthy.information
    measured = [healthy.information] * 3 + [collapsed.information] * 3
    assert "it becomes the same whatever the job" in str(collapse_alarm(measured, [0.5] * 6))
    assert collapse_alarm([healthy.information] * 6, [0.5] * 6) is None


def test_scores_are_the_models_and_prompts_have_equal_shares(tiny_models):
    models = tiny_models(["one two three"])
    learner = Learner(_trainable(models.load()))
    a, b = tuple(models.ids(1, 6)), tuple(models.ids(2, 9))
    reasonings = [Reasoning(a, (5, 6)), Reasoning(a, (7, 8, 9)), Reasoning(a, (5, 6)), Reasoning(b, (9, 4))]
    found = measured_dependence(learner, reasonings, 4096)
    model = models.plain()
    scores = torch.zeros(2, 2)
    for row, ids in enumerate([(5, 6), (9, 4)]):
        for column, prompt in enumerate([a, b]):
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            scores[row, column] = logits.gather(1, torch.tensor(ids)[:, None]).sum()
    expected = information(scores, torch.tensor([0, 1]))
    assert found is not None
    assert found.information == pytest.approx(expected.information, abs=1e-4)
    assert measured_dependence(learner, reasonings[:3], 4096) is None, "one prompt tells nothing"


def _trainable(loaded):
    for parameter in loaded.model.parameters():
        parameter.requires_grad_(True)
    return loaded


def test_the_reasoning_of_a_turn_ends_where_its_words_do():
    text = '{"reasoning": "look it up", "tool_name": "x"}'
    completion = Completion(text=text, token_ids=tuple(range(len(text))), prompt_ids=(1, 2))
    action = Action(tool_name="x", reasoning="look it up")
    step = Step(index=0, observation="", completion=completion, action=action)
    found = first_reasoning(Trajectory(episode_id="e", task_id="t", steps=(step,)), lambda ids: text[: len(ids)])
    assert found == Reasoning((1, 2), tuple(range(text.index('", "tool_name'))))
    silent = Step(index=0, observation="", completion=completion, action=Action(tool_name="x"))
    assert first_reasoning(Trajectory(episode_id="e", task_id="t", steps=(silent,)), str) is None
    assert first_reasoning(Trajectory(episode_id="e", task_id="t"), str) is None


# ---------------------------------------------------------------- texts


WORDS = [f"word{number}" for number in range(40)]
TASKS = [f"task{number // 4}" for number in range(24)]


def test_texts_that_name_their_task_find_their_siblings():
    rng = random.Random(1)
    texts = [f"{' '.join(rng.sample(WORDS, 3))} about order {task} {task}" for task in TASKS]
    assert sibling_retrieval(texts, TASKS) > 0.9


def test_one_text_for_all_and_varied_texts_about_nothing_are_at_chance():
    assert sibling_retrieval(["the same"] * 24, TASKS) == pytest.approx(0.0, abs=1e-12)
    assert sibling_retrieval([""] * 24, TASKS) == pytest.approx(0.0, abs=1e-12)
    rng = random.Random(2)
    drawn = [sibling_retrieval([" ".join(rng.sample(WORDS, 6)) for _ in TASKS], TASKS) for _ in range(200)]
    assert sum(drawn) / 200 == pytest.approx(0.0, abs=0.02)


def test_without_siblings_or_other_tasks_there_is_nothing_to_compare():
    assert sibling_retrieval(["a", "b"], ["x", "y"]) is None
    assert sibling_retrieval(["a", "b"], ["x", "x"]) is None
    assert sibling_retrieval([], []) is None


# ---------------------------------------------------------------- the alarm


def run_of_texts(collapsing, steps=12):
    """Retrieval at each step of a scripted policy that from the fifth step on may say the same to all."""
    rng = random.Random(3)
    found = []
    for step in range(steps):
        same = collapsing and step >= 5
        texts = [f"{' '.join(rng.sample(WORDS, 4))} {'the order' if same else f'{task} {task}'}" for task in TASKS]
        found.append(sibling_retrieval(texts, TASKS))
    return found


def test_a_scripted_collapse_is_found_once_and_a_healthy_run_is_not_flagged():
    rising = [0.3 + 0.03 * step for step in range(12)]
    collapsing, healthy = run_of_texts(collapsing=True), run_of_texts(collapsing=False)
    said = [step for step in range(1, 13) if collapse_alarm(collapsing[:step], rising[:step])]
    assert len(said) == 1
    assert 6 <= said[0] <= 9
    assert not any(collapse_alarm(healthy[:step], rising[:step]) for step in range(1, 13))


def test_a_fall_that_the_reward_shows_and_one_from_nothing_are_not_flagged():
    fallen = [1.0] * 3 + [0.1] * 3
    assert collapse_alarm(fallen, [0.5] * 6) is not None
    assert collapse_alarm([*fallen, 0.1], [0.5] * 7) is None, "said a step ago"
    assert collapse_alarm(fallen, [0.5] * 3 + [0.2] * 3) is None
    assert collapse_alarm([0.08] * 3 + [0.0] * 3, [0.5] * 6) is None
