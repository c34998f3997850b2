"""What one GRPO update of a LoRA adapter costs: seconds, and the most memory the process held."""

from __future__ import annotations

import random

from deedrl.benchmarks.measure import BenchmarkResult, check_count, figure, peak_figures, this_machine, timed
from deedrl.config import require
from deedrl.policies.local.model import add_adapter, load_model
from deedrl.training.learner import Learner
from deedrl.training.policy_gradient import PolicyUpdate, update_policy
from deedrl.training.samples import TrainingSample
from deedrl.types import Record

TURN = 25
"""Sampled tokens of a turn."""
RESULT = 15
"""Tokens that a turn is told before it."""


class UpdateSettings(Record, frozen=True):
    """The batch and the adapter."""

    model: str = "embedded"
    dtype: str = "auto"
    tasks: int = 8
    siblings: int = 8
    shared_tokens: int = 300
    """System prompt and tools, the same for all."""
    own_tokens: int = 200
    """Of each episode after them: a task (as long as the turns leave it), then results and turns in turn."""
    rank: int = 16
    micro_batch_tokens: int = 2048
    kl: float = 0.0
    """Above 0 every update also passes over the batch with the adapter as it was."""
    repetitions: int = 3

    def __post_init__(self) -> None:
        for name in ("tasks", "siblings", "shared_tokens", "rank", "micro_batch_tokens", "repetitions"):
            require(getattr(self, name) >= 1, name, f"expected at least 1, got {getattr(self, name)}")
        least = 2 * (TURN + RESULT)
        require(self.own_tokens >= least, "own_tokens", f"expected at least {least}, got {self.own_tokens}")


def benchmark_update(settings: UpdateSettings) -> BenchmarkResult:
    """One unmeasured update, then `repetitions`. Raises `BenchmarkError` if not every action token was learnt from."""
    machine = this_machine()
    loaded = load_model(settings.model, dtype=settings.dtype)
    adapted = add_adapter(
        loaded, rank=settings.rank, alpha=2.0 * settings.rank, dropout=0.0, target="all-linear", seed=0
    )
    vocabulary = int(loaded.model.get_output_embeddings().weight.shape[0])
    learner = Learner(adapted)
    samples = made_up_batch(settings, vocabulary)
    actions = sum(sample.action_tokens for sample in samples)
    seconds = []
    for repetition in range(settings.repetitions + 1):
        figures, spent = timed(lambda: _update(learner, samples, settings))
        check_count("action tokens", actions, int(figures["action_tokens"]))
        if repetition:
            seconds.append(spent.wall_s)
    tokens = sum(len(sample.ids) for sample in samples)
    return BenchmarkResult(
        benchmark="update",
        settings={
            **{name: getattr(settings, name) for name in settings.__struct_fields__},
            "precision": str(loaded.model.dtype).removeprefix("torch."),
        },
        counts={"episodes": len(samples), "tokens": tokens, "action tokens": actions},
        figures=(
            figure("update (wall)", "s", seconds),
            figure("tokens of the batch (wall)", "1/s", [tokens / second for second in seconds]),
            *peak_figures(),
        ),
        machine=machine,
    )


def made_up_batch(settings: UpdateSettings, vocabulary: int) -> list[TrainingSample]:
    """Episodes of random tokens (ids from 3 on), siblings one after the other; their advantages add up to about 0."""
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(3, vocabulary) for _ in range(count)]

    shared = tokens(settings.shared_tokens)
    turns = (settings.own_tokens - RESULT) // (TURN + RESULT)
    samples = []
    for task in range(settings.tasks):
        prompt = tokens(settings.own_tokens - turns * (TURN + RESULT) + RESULT)
        for sibling in range(settings.siblings):
            ids, mask = [*shared, *prompt], [False] * (settings.shared_tokens + len(prompt))
            for turn in range(turns):
                told = tokens(RESULT) if turn else []
                ids += [*told, *tokens(TURN)]
                mask += [False] * len(told) + [True] * TURN
            advantage = 1.0 - 2.0 * (sibling % 2)
            samples.append(
                TrainingSample(
                    episode_id=f"{task}-{sibling}",
                    ids=tuple(ids),
                    action_mask=tuple(mask),
                    logprobs=tuple(-10.0 if action else 0.0 for action in mask),
                    advantages=tuple(advantage if action else 0.0 for action in mask),
                )
            )
    return samples


def _update(learner: Learner, samples: list[TrainingSample], settings: UpdateSettings) -> dict[str, float]:
    update = PolicyUpdate(
        learning_rate=1e-6,
        max_grad_norm=1.0,
        micro_batch_tokens=settings.micro_batch_tokens,
        clip_low=0.2,
        clip_high=0.2,
        kl_coefficient=settings.kl,
        normalisation="token",
        normalisation_tokens=settings.own_tokens,
    )
    return update_policy(learner, samples, update, learner.snapshot() if settings.kl else None)
