"""A tiny model, samples made by hand, and slow loops as references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from deedrl.policies.local.model import LoadedModel
from deedrl.training.packing import Batch, pack
from deedrl.training.samples import TrainingSample
from deedrl.types import Action, Completion, RewardBreakdown, Step, Trajectory, TrajectoryGroup


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread):
    pass


class Kit:
    """What the tests of this folder share."""

    def __init__(self, models: Any) -> None:
        self._models = models
        self.plain, self.ids = models.plain, models.ids

    def load(
        self, family: str = "Llama", *, trainable: bool = True, dtype: str = "fp32", **options: Any
    ) -> LoadedModel:
        """A fresh copy of the tiny model; all its weights can be trained if `trainable`."""
        loaded = self._models.load(family, dtype=dtype, **options)
        for parameter in loaded.model.parameters():
            parameter.requires_grad_(trainable)
        return loaded

    @staticmethod
    def sample(name: str, *parts: Sequence[int], **fields: Any) -> TrainingSample:
        """Context and action tokens in turn: sample("e", context, action, context, action)."""
        ids: list[int] = []
        mask: list[bool] = []
        for index, part in enumerate(parts):
            ids += part
            mask += [index % 2 == 1] * len(part)
        fields.setdefault("logprobs", (0.0,) * len(ids))
        if isinstance(advantage := fields.pop("advantage", None), float):
            fields["advantages"] = tuple(advantage if action else 0.0 for action in mask)
        return TrainingSample(episode_id=name, ids=tuple(ids), action_mask=tuple(mask), **fields)

    def family(self, count: int = 4, prefix: int = 9, **fields: Any) -> list[TrainingSample]:
        """Samples of different lengths, two turns each, that begin with the same tokens."""
        head = self.ids(1000, prefix)
        return [
            self.sample(
                f"e{i}",
                [*head, *self.ids(i, 2 + i)],
                self.ids(10 + i, 3 + 2 * i),
                self.ids(20 + i, 4),
                self.ids(30 + i, 2 + i),
                **fields,
            )
            for i in range(count)
        ]

    @staticmethod
    def one_batch(samples: Sequence[TrainingSample]) -> Batch:
        [batch] = pack(samples, micro_batch_tokens=1_000_000)
        return batch

    @staticmethod
    def gradient(model: Any, loss: torch.Tensor) -> torch.Tensor:
        """The gradient of `loss` by all parameters as one vector."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        return torch.cat(
            [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, gradients, strict=True)]
        )

    @staticmethod
    def trajectory(
        name: str,
        reward: float | None,
        turns: Sequence[tuple[Sequence[int], Sequence[int]]] = (((5, 6), (7, 8)),),
        *,
        task: str = "t",
        **fields: Any,
    ) -> Trajectory:
        """An episode with `turns` of (context, sampled) ids; log-probabilities are -1."""
        breaks = fields.pop("breaks", ())
        guided = fields.pop("guided", False)
        steps = tuple(
            Step(
                index=i,
                observation="",
                completion=Completion(
                    text="",
                    prompt_ids=tuple(context),
                    token_ids=tuple(sampled),
                    logprobs=(-1.0,) * len(sampled),
                    extends_previous=i > 0 and i not in breaks,
                    guided=guided,
                ),
                action=Action(),
            )
            for i, (context, sampled) in enumerate(turns)
        )
        return Trajectory(episode_id=name, task_id=task, steps=steps, breakdown=RewardBreakdown(total=reward), **fields)

    @staticmethod
    def group(trajectories: Sequence[Trajectory]) -> TrajectoryGroup:
        first = trajectories[0]
        return TrajectoryGroup(task_id=first.task_id, role=first.role, trajectories=tuple(trajectories))

    @staticmethod
    def parameters(loaded: LoadedModel) -> torch.Tensor:
        return torch.cat([p.detach().flatten().clone() for p in loaded.model.parameters() if p.requires_grad])


@pytest.fixture(scope="session")
def kit(tiny_models) -> Kit:
    texts = ["Say A or B.", '{"reasoning": "I choose.", "tool_name": "choose", "parameters": {"letter": "A"}}'] * 20
    return Kit(tiny_models(texts))
