"""Losses and gradients of the functions that DeedRL's stages call, for `losses.py`.

Adam's first moment after a first step is a tenth of the gradient, so that a gradient needs no way in of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from serving import Requests, read_work

from deedrl.policies.local.model import LoadedModel, load_adapter, load_model
from deedrl.training.dpo import DpoUpdate, update_preferences
from deedrl.training.learner import Learner
from deedrl.training.policy_gradient import PolicyUpdate, update_policy
from deedrl.training.preferences import PreferencePair
from deedrl.training.samples import TrainingSample
from deedrl.training.sft import sft_update

NO_CLIPPING = 1e9
STEP: dict[str, Any] = {"learning_rate": 1e-9, "max_grad_norm": NO_CLIPPING}
IN_PIECES = 48
"""Tokens of a micro-batch where there are to be several."""


def main() -> None:
    work = read_work()
    requests = Requests()
    while True:
        request = requests.wait()
        case = request["case"]
        learner = Learner(_loaded(work, case["trained"]), temperature=case["temperature"])
        step = STEP | {"micro_batch_tokens": 100_000 if case["pieces"] == 1 else IN_PIECES}
        loss = LOSSES[case["kind"]](learner, work, step, case["settings"])
        moments = {n: v for n, v in learner.tensors().items() if n.startswith("exp_avg.")}
        save_file(
            {name.removeprefix("exp_avg."): (value * 10).contiguous() for name, value in moments.items()},
            request["gradients"],
        )
        requests.answer(0, loss=loss)


def _loaded(work: dict[str, Any], trained: str) -> LoadedModel:
    loaded = load_model(work["model"], dtype="fp32")
    if trained == "adapter":
        return load_adapter(loaded, Path(work["adapter"]))
    loaded.model.requires_grad_(True)
    return loaded


def _sample(index: int, row: dict[str, Any], logprobs: str = "logprobs") -> TrainingSample:
    return TrainingSample(
        episode_id=str(index),
        ids=tuple(row["ids"]),
        action_mask=tuple(row["action_mask"]),
        logprobs=tuple(row[logprobs]),
        advantages=tuple(row["advantage"] if action else 0.0 for action in row["action_mask"]),
    )


def _sft(learner: Learner, work: dict[str, Any], step: dict[str, Any], settings: dict[str, Any]) -> float:
    return sft_update(learner, [_sample(*each) for each in enumerate(work["rows"])], **step, **settings).loss


def _dpo(learner: Learner, work: dict[str, Any], step: dict[str, Any], settings: dict[str, Any]) -> float:
    """Of siblings the first is the chosen one."""
    samples = [_sample(index, row, "reference") for index, row in enumerate(work["rows"])]
    pairs = [
        PreferencePair(
            kind="outcome",
            task_id="t",
            chosen=one.episode_id,
            rejected=other.episode_id,
            margin=1.0,
            chosen_tokens=one.action_tokens,
            rejected_tokens=other.action_tokens,
        )
        for one, other in zip(samples[::2], samples[1::2], strict=True)
    ]
    defaults = {"label_smoothing": 0.0, "sft_coefficient": 0.0}
    update = DpoUpdate(**defaults | step | settings)
    return update_preferences(learner, pairs, {s.episode_id: [s] for s in samples}, update)["loss"]


def _policy(learner: Learner, work: dict[str, Any], step: dict[str, Any], settings: dict[str, Any]) -> float:
    samples = [_sample(*each) for each in enumerate(work["rows"])]
    update = PolicyUpdate(**{"normalisation_tokens": 1} | step | settings)
    reference = None
    if update.kl_coefficient:
        weights = dict(load_model(work["reference"], dtype="fp32").model.named_parameters())
        reference = [weights[name].detach() for name in learner.parameters]
    return update_policy(learner, samples, update, reference)["loss"]


LOSSES = {"sft": _sft, "dpo": _dpo, "policy": _policy}


if __name__ == "__main__":
    main()
