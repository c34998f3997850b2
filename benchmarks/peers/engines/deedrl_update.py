"""DeedRL's update of a LoRA adapter: one optimiser step over the whole batch."""

from __future__ import annotations

from serving import read_work, serve

import deedrl
from deedrl.policies.local.model import add_adapter, load_model
from deedrl.training.learner import Learner
from deedrl.training.policy_gradient import PolicyUpdate, update_policy
from deedrl.training.samples import TrainingSample


def main() -> None:
    work = read_work()
    loaded = load_model(work["model"], dtype={"float32": "fp32", "bfloat16": "bf16"}[work["precision"]])
    rank = work["rank"]
    learner = Learner(add_adapter(loaded, rank=rank, alpha=2.0 * rank, dropout=0.0, target="all-linear", seed=0))
    samples = [
        TrainingSample(
            episode_id=str(index),
            ids=tuple(row["ids"]),
            action_mask=tuple(row["action_mask"]),
            logprobs=tuple(-10.0 if action else 0.0 for action in row["action_mask"]),
            advantages=tuple(row["advantage"] if action else 0.0 for action in row["action_mask"]),
        )
        for index, row in enumerate(work["rows"])
    ]
    settings = PolicyUpdate(
        learning_rate=1e-6,
        max_grad_norm=1.0,
        micro_batch_tokens=work["micro_batch_tokens"],
        clip_low=0.2,
        clip_high=0.2,
        kl_coefficient=0.0,
        normalisation="token",
        normalisation_tokens=len(samples[0].ids),
    )
    serve(
        lambda: int(update_policy(learner, samples, settings, None)["action_tokens"]),
        deedrl=deedrl.__version__,
        micro_batch_tokens=work["micro_batch_tokens"],
    )


if __name__ == "__main__":
    main()
