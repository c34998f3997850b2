"""How much reasoning still depends on what it is about: signs of a collapse that neither reward nor entropy shows.

A policy may keep writing varied reasoning that is the same whatever the input; entropy given one input stays high while
the mutual information between input and reasoning falls (template collapse, Wang et al. 2026, "RAGEN-2: Reasoning
Collapse in Agentic RL", arXiv 2604.06268, which proposes to watch it by proxies; those here are our own choice). Two
estimates: `information` asks the model how likely each reasoning is under other prompts, `sibling_retrieval` compares
texts alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deedrl.training.learner import Learner
from deedrl.training.packing import pack
from deedrl.training.samples import TrainingSample
from deedrl.types import Trajectory

MOST_PROMPTS = 8
"""Prompts that reasoning is scored under; the cost grows with their square."""
MOST_SIBLINGS = 2
"""Reasonings of each of them."""


@dataclass(frozen=True)
class Dependence:
    """Of reasonings drawn from P prompts, each scored under all of them."""

    information: float
    """Nats, at most log P."""
    retrieved: float
    """Share of reasonings that their own prompt makes likeliest; 1 / P where they depend on nothing."""


@dataclass(frozen=True)
class Reasoning:
    """The reasoning of an episode's first turn, as tokens after its prompt."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]


# ---------------------------------------------------------------- by the model


def information(scores: Tensor, own: Tensor) -> Dependence:
    """From log-probabilities [R, P] of R reasonings under P prompts, and the prompt `own` [R] each was drawn from.

    The mean of log p(r | own) - log (1/P) sum_j p(r | j). With as many reasonings of each prompt it is unbiased for the
    mutual information between a prompt drawn evenly from the P and its reasoning, and so on average at most that over
    all prompts, and never above log P: the bound of contrastive prediction (van den Oord et al. 2018, arXiv 1807.03748)
    with the likelihood itself as the critic. Equal best prompts share a retrieval.
    """
    rows, prompts = scores.shape
    scores = scores.double()
    chosen = scores[torch.arange(rows), own]
    ratios = chosen - (scores.logsumexp(1) - math.log(prompts))
    best = scores == scores.max(1, keepdim=True).values
    retrieved = best[torch.arange(rows), own].double() / best.sum(1)
    return Dependence(float(ratios.mean()), float(retrieved.mean()))


def measured_dependence(
    learner: Learner, reasonings: Sequence[Reasoning], micro_batch_tokens: int
) -> Dependence | None:
    """`information` of the first `MOST_SIBLINGS` reasonings of each of the first `MOST_PROMPTS` prompts, under the
    learner's weights; None with fewer than two prompts. Costs a forward pass over reasonings × prompts."""
    by_prompt: dict[tuple[int, ...], list[Reasoning]] = {}
    for reasoning in reasonings:
        by_prompt.setdefault(reasoning.prompt_ids, []).append(reasoning)
    prompts = list(by_prompt)[:MOST_PROMPTS]
    if len(prompts) < 2:
        return None
    # As many of each, for the estimate takes prompts to be drawn evenly.
    each = min(MOST_SIBLINGS, *(len(by_prompt[prompt]) for prompt in prompts))
    chosen = [reasoning for prompt in prompts for reasoning in by_prompt[prompt][:each]]
    samples = [_scored(reasoning, prompt) for reasoning in chosen for prompt in prompts]
    sums = torch.zeros(len(samples), dtype=torch.float64)
    batches = pack(samples, micro_batch_tokens=micro_batch_tokens)
    for batch, logprobs in zip(batches, learner.logprobs(batches), strict=True):
        sums.index_add_(0, batch.given_as[batch.sample_of], logprobs.double())
    own = torch.arange(len(prompts)).repeat_interleave(each)
    return information(sums.reshape(len(chosen), len(prompts)), own)


def _scored(reasoning: Reasoning, prompt: tuple[int, ...]) -> TrainingSample:
    ids = (*prompt, *reasoning.ids)
    mask = (False,) * len(prompt) + (True,) * len(reasoning.ids)
    return TrainingSample(episode_id="", ids=ids, action_mask=mask, logprobs=(0.0,) * len(ids))


def first_reasoning(trajectory: Trajectory, text_of: Callable[[Sequence[int]], str]) -> Reasoning | None:
    """The tokens of the first turn up to the end of its reasoning; None if it has none, or none that is its own words.

    `text_of` decodes tokens. Reasoning that the text holds in another spelling (escaped quotes) is left out.
    """
    if not trajectory.steps:
        return None
    completion, words = trajectory.steps[0].completion, trajectory.steps[0].action.reasoning
    start = completion.text.find(words) if words else -1
    if start < 0 or not completion.token_ids or not completion.prompt_ids:
        return None
    end = start + len(words)
    low, high = 1, len(completion.token_ids)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(text_of(completion.token_ids[:middle])) >= end else (middle + 1, high)
    return Reasoning(completion.prompt_ids, completion.token_ids[:low])


# ---------------------------------------------------------------- by texts alone


def sibling_retrieval(texts: Sequence[str], tasks: Sequence[str]) -> float | None:
    """Of each of N `texts`, whether the most similar other one is of the same task: 1 always, 0 as often as by chance.

    Similar is the cosine of counts of words and numbers; equal best ones share. If texts do not depend on their tasks,
    every other text is as likely to be the most similar, so the mean is 0 whatever texts look like; below 0 is chance.
    None with fewer than two tasks, or without siblings. It sees words, not what they mean.
    """
    if len(set(tasks)) < 2 or len(set(tasks)) == len(tasks):
        return None
    words = [re.findall(r"\w+", text.lower()) for text in texts]
    place = {word: index for index, word in enumerate(dict.fromkeys(word for one in words for word in one))}
    counts = torch.zeros(len(texts), len(place) + 1)
    for row, one in enumerate(words):
        counts[row, -1] = not one  # texts without words are alike
        for word in one:
            counts[row, place[word]] += 1
    unit = torch.nn.functional.normalize(counts.double())
    # Rounded, for equal texts must be equally similar.
    similar = (unit @ unit.T).round(decimals=9)
    similar.fill_diagonal_(-1.0)
    numbers = {task: number for number, task in enumerate(dict.fromkeys(tasks))}
    of_task = torch.tensor([numbers[task] for task in tasks])
    siblings = (of_task[:, None] == of_task[None]) & ~torch.eye(len(tasks), dtype=torch.bool)
    best = similar == similar.max(1, keepdim=True).values
    found = (best & siblings).sum(1) / best.sum(1)
    chance = siblings.sum(1) / (len(tasks) - 1)
    return float((found.mean() - chance.mean()) / (1 - chance.mean()))
