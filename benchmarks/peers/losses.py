"""Losses and gradients of DeedRL and TRL on the same batch, side by side.

    python benchmarks/peers/install.py trl
    python benchmarks/peers/losses.py

A tiny random Llama in float32 and episodes of two turns, of different lengths, are written down once; each side takes
one optimiser step's gradient of them in a process of its own: DeedRL with the functions its stages call, TRL with its
trainers' `training_step`. It ends with a table, and with an error if a row is over the tolerance that is not marked as
a different definition.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from processes import Engine
from safetensors.torch import load_file
from torch import Tensor

from deedrl.policies.local.model import LoadedModel, add_adapter, load_model
from deedrl.policies.local.tiny import build_tiny_model
from deedrl.training.dpo import recorded
from deedrl.training.learner import Learner
from deedrl.training.samples import TrainingSample

TOLERANCE = 1e-5
"""Of the loss (relative to 1 where it is smaller) and of the gradient (length of the difference to its length)."""
ROWS = 8
TURNS = ((5, 3), (2, 4))
"""Tokens told and sampled in each turn of the shortest episode."""


@dataclass(frozen=True)
class Case:
    """One loss in the words of both sides."""

    name: str
    kind: str
    ours: dict[str, Any] = field(default_factory=dict)
    trl: dict[str, Any] = field(default_factory=dict)
    trained: str = "weights"
    """Or `adapter`."""
    temperature: float = 1.0
    pieces: int = 1
    """Micro-batches of TRL; DeedRL's are then bounded by tokens."""
    differs: str = ""
    """Why the two are not the same; empty where they have to be."""


def policy(name: str, ours: dict[str, Any], trl: dict[str, Any], **fields: Any) -> Case:
    """A policy gradient; both clip ratios to [0.9, 1.15] and have a KL term of 0.04 unless told otherwise."""
    return Case(
        name,
        "policy",
        {"clip_low": 0.1, "clip_high": 0.15, "kl_coefficient": 0.04, **ours},
        {"epsilon": 0.1, "epsilon_high": 0.15, "beta": 0.04, "use_bias_correction_kl": False, **trl},
        **fields,
    )


WITHOUT_KL = {"normalisation": "sequence", "kl_coefficient": 0.0}, {"loss_type": "grpo", "beta": 0.0}
PER_PIECE = "TRL divides each micro-batch by its own tokens; DeedRL by those of the whole update"
CASES = (
    Case("SFT", "sft"),
    Case("SFT, adapter", "sft", trained="adapter"),
    Case("SFT, 2 pieces", "sft", pieces=2),
    Case("DPO sigmoid", "dpo", {"loss": "sigmoid", "beta": 0.1}, {"loss_type": ["sigmoid"], "beta": 0.1}),
    Case("DPO ipo", "dpo", {"loss": "ipo", "beta": 0.3}, {"loss_type": ["ipo"], "beta": 0.3}),
    Case(
        "DPO length_normalised",
        "dpo",
        {"loss": "length_normalised", "beta": 2.0},
        {"loss_type": ["sigmoid_norm"], "beta": 2.0},
    ),
    Case(
        "DPO sigmoid, adapter",
        "dpo",
        {"loss": "sigmoid", "beta": 0.1},
        {"loss_type": ["sigmoid"], "beta": 0.1},
        trained="adapter",
    ),
    Case("DPO sigmoid, 2 pieces", "dpo", {"loss": "sigmoid", "beta": 0.1}, {"loss_type": ["sigmoid"]}, pieces=2),
    Case(
        "DPO sigmoid + likelihood",
        "dpo",
        {"loss": "sigmoid", "beta": 0.1, "sft_coefficient": 0.5},
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5], "beta": 0.1},
        differs="TRL averages the likelihood over tokens, DeedRL over pairs of their averages (Pang et al.)",
    ),
    policy("GRPO", {"normalisation": "sequence"}, {"loss_type": "grpo"}),
    policy(
        "GRPO, TRL's own KL",
        {"normalisation": "sequence"},
        {"loss_type": "grpo", "use_bias_correction_kl": True},
        differs="TRL's default multiplies the KL term by the importance ratio (DeepSeek-V3.2); DeedRL's k3 is GRPO's",
    ),
    policy("GRPO, no KL", *WITHOUT_KL),
    policy("GRPO, no KL, adapter", *WITHOUT_KL, trained="adapter"),
    policy("GRPO, no KL, temperature 0.7", *WITHOUT_KL, temperature=0.7),
    policy("GRPO, 2 pieces", {"normalisation": "sequence"}, {"loss_type": "grpo"}, pieces=2),
    policy("BNPO", {"normalisation": "token"}, {"loss_type": "bnpo"}),
    policy("BNPO, 2 pieces", {"normalisation": "token"}, {"loss_type": "bnpo"}, pieces=2, differs=PER_PIECE),
    policy("DAPO", {"normalisation": "token"}, {"loss_type": "dapo"}),
    policy("DAPO, 2 pieces", {"normalisation": "token"}, {"loss_type": "dapo"}, pieces=2),
    policy(
        "Dr. GRPO",
        {"normalisation": "constant", "normalisation_tokens": 64},
        {"loss_type": "dr_grpo", "max_completion_length": 64},
    ),
    policy(
        "GSPO",
        {"normalisation": "sequence", "objective": "sequence_clipped", "clip_low": 0.02, "clip_high": 0.03},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.02, "epsilon_high": 0.03},
    ),
    policy(
        "CISPO",
        # TRL bounds the weight itself from above, and not from below.
        {"normalisation": "token", "objective": "cispo", "clip_low": 1.0, "clip_high": 0.15},
        {"loss_type": "cispo", "epsilon_high": 1.15},
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="rows of the table whose names begin with one of these")
    only = tuple(parser.parse_args().only)
    cases = [case for case in CASES if case.name.startswith(only or "")]
    with tempfile.TemporaryDirectory(prefix="peer-") as scratch:
        folder = Path(scratch)
        work = folder / "losses.json"
        work.write_text(json.dumps(workload(folder)), encoding="utf-8")
        found = {name: answers(name, work, folder, cases) for name in ("deedrl", "trl")}
        lines = [line(case, found["deedrl"][case.name], found["trl"][case.name]) for case in cases]
    print("| loss | DeedRL | TRL | difference | gradient | difference of gradients | |")
    print("|---|---|---|---|---|---|---|")
    for text, _ in lines:
        print(text)
    return int(not all(fine for _, fine in lines))


# ---------------------------------------------------------------- what both are given


def workload(folder: Path) -> dict[str, Any]:
    """Writes the model, the reference and an adapter; returns them with the episodes, siblings following each other."""
    model = build_tiny_model(folder / "model", ["what a job is made of, in words"] * 4)
    reference = load_model(str(model), dtype="fp32")
    _shift(reference, "weight", 0.01)
    reference.save(folder / "reference")
    adapted = add_adapter(
        load_model(str(model), dtype="fp32"), rank=4, alpha=8.0, dropout=0.0, target="all-linear", seed=0
    )
    _shift(adapted, "lora_B", 0.02)  # zeros, at which the gradient of the other half vanishes
    adapted.save(folder / "adapter")
    loaded = load_model(str(model), dtype="fp32")
    rows = _episodes(random.Random(0), int(loaded.model.config.vocab_size))
    noise = random.Random(1)
    sampled = [_moved(row, noise) for row in _recorded(loaded, rows)]
    return {
        "model": str(model),
        "reference": str(folder / "reference"),
        "adapter": str(folder / "adapter"),
        "rows": [
            {
                "ids": row.ids,
                "action_mask": row.action_mask,
                "logprobs": logprobs,
                "reference": row.logprobs,
                "advantage": noise.uniform(-1.0, 1.0),
            }
            for row, logprobs in zip(_recorded(reference, rows), sampled, strict=True)
        ],
    }


def _shift(loaded: LoadedModel, names: str, size: float) -> None:
    """Adds noise to the parameters with `names` in their name."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        for name, parameter in loaded.model.named_parameters():
            if names in name:
                parameter.add_(size * torch.randn_like(parameter))


def _recorded(loaded: LoadedModel, rows: Sequence[TrainingSample]) -> list[TrainingSample]:
    """The episodes with the log-probabilities of this model."""
    loaded.model.requires_grad_(True)
    known = recorded(Learner(loaded), {row.episode_id: [row] for row in rows}, 10_000)
    return [row for [row] in known.values()]


def _episodes(rng: random.Random, vocabulary: int) -> list[TrainingSample]:
    """Two siblings of each task; lengths differ."""
    rows = []
    for index in range(ROWS):
        ids: list[int] = []
        mask: list[bool] = []
        task = random.Random(index // 2)
        for turn, (told, sampled) in enumerate(TURNS):
            source = rng if turn else task
            ids += [source.randrange(2, vocabulary) for _ in range(told + (0 if turn else index // 2))]
            actions = sampled + rng.randrange(5)
            ids += [rng.randrange(2, vocabulary) for _ in range(actions)]
            mask += [False] * (len(ids) - len(mask) - actions) + [True] * actions
        rows.append(
            TrainingSample(episode_id=str(index), ids=tuple(ids), action_mask=tuple(mask), logprobs=(0.0,) * len(ids))
        )
    return rows


def _moved(row: TrainingSample, noise: random.Random) -> list[float]:
    """Log-probabilities of a policy some way off, the whole episode more or less likely; 0.0 where nothing is."""
    whole = noise.gauss(0.0, 0.05)
    return [
        value + whole + noise.gauss(0.0, 0.15) if action else 0.0
        for value, action in zip(row.logprobs, row.action_mask, strict=True)
    ]


# ---------------------------------------------------------------- what they answer

Answer = tuple[float, dict[str, Tensor]]
"""The loss and its gradient by parameter."""


def answers(name: str, work: Path, folder: Path, cases: Sequence[Case]) -> dict[str, Answer]:
    found = {}
    with Engine(name, work, "losses") as engine:
        for case in cases:
            gradients = folder / f"{name}.safetensors"
            told = asdict(replace(case, ours={}, trl={})) | {"settings": case.ours if name == "deedrl" else case.trl}
            loss = engine.ask("run", case=told, gradients=str(gradients))["loss"]
            found[case.name] = (loss, {key: value.clone() for key, value in load_file(gradients).items()})
    return found


def line(case: Case, ours: Answer, theirs: Answer) -> tuple[str, bool]:
    """The case's row of the table, and whether it is as it has to be."""
    if ours[1].keys() != theirs[1].keys():
        raise SystemExit(
            f"{case.name}: the two have gradients of other parameters: {ours[1].keys() ^ theirs[1].keys()}"
        )
    length, apart = _norm(ours[1]), _norm({name: ours[1][name] - theirs[1][name] for name in ours[1]})
    difference = abs(ours[0] - theirs[0])
    same = difference <= TOLERANCE * max(1.0, abs(ours[0])) and apart <= TOLERANCE * length
    note = case.differs or ("" if same else "**over the tolerance**")
    cells = (f"{ours[0]:.6f}", f"{theirs[0]:.6f}", f"{difference:.1e}", f"{length:.4f}", f"{apart / length:.1e}")
    return f"| {case.name} | {' | '.join(cells)} | {note} |", same or bool(case.differs)


def _norm(gradients: dict[str, Tensor]) -> float:
    return float(torch.stack([value.double().square().sum() for value in gradients.values()]).sum().sqrt())


if __name__ == "__main__":
    sys.exit(main())
