"""A reward model on the disk: versions of it in a folder, each a PEFT adapter, a head and JSON, never pickle.

``<folder>/v0001/``: ``adapter_config.json`` and ``adapter_model.safetensors`` as PEFT reads them, ``head.safetensors``,
``calibration.json``, and ``reward_model.json`` with what it is. A version is written under another name, synced and
renamed, so it is complete or not there, and is never changed; the newest one counts.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from deedrl.errors import CheckpointError, ModelError
from deedrl.files import sync_folder, write_synced
from deedrl.policies.local.model import LoadedModel
from deedrl.policies.local.source import ADAPTER_CONFIG, ADAPTER_WEIGHTS, check_tensors
from deedrl.training.headed import AdapterBeside, HeadedTrunk, put_adapter_beside
from deedrl.training.rank_agreement import RankAgreement
from deedrl.training.reward_labels import CalibrationSet
from deedrl.training.reward_model import RewardModel
from deedrl.types import Record

FORMAT = 1
INFO, HEAD, CALIBRATION = "reward_model.json", "head.safetensors", "calibration.json"
ALLOWED = {INFO, HEAD, CALIBRATION, ADAPTER_CONFIG, ADAPTER_WEIGHTS, "README.md"}
NUMBERS_OF_A_WEIGHT = 1024
"""Of each base weight that its fingerprint looks at, evenly spaced."""

Content = TypeVar("Content")


class CalibratedPart(Record, frozen=True):
    """One calibration set, and how far this version agreed with it when it was saved."""

    version: int
    """Of the model that it was put aside for."""
    hash: str
    agreement: RankAgreement


class RewardModelInfo(Record, frozen=True):
    """What a saved reward model is."""

    format: int
    reads: Literal["outcome", "process"]
    version: int
    base: str
    """Fingerprint of the model below its adapter, see `base_fingerprint`."""
    source: str
    """Name that model was loaded by."""
    mean: float
    """Of its scores of the calibration episodes' last turns, as of `scale`."""
    scale: Annotated[float, Meta(gt=0)]
    """Their standard deviation."""
    step: int
    """Optimiser steps after which these weights were kept."""
    calibration: tuple[CalibratedPart, ...]


class SavedRewardModel(Record, frozen=True):
    """A version on the disk, looked at and found whole."""

    folder: Path
    info: RewardModelInfo
    calibration: tuple[CalibrationSet, ...]


def base_fingerprint(loaded: LoadedModel) -> str:
    """SHA-256 (64 hex digits) of the model without adapters, whatever type its numbers were loaded in: names, shapes, a
    sample of every weight in bf16, and the tokenizer's vocabulary."""
    import torch

    digest = hashlib.sha256(json.dumps(sorted(loaded.tokenizer.get_vocab().items())).encode())
    for name, weight in sorted(loaded.model.state_dict().items()):
        if "lora_" in name:
            continue
        plain = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
        flat = weight.detach().flatten()
        some = flat[:: max(len(flat) // NUMBERS_OF_A_WEIGHT, 1)].to(torch.bfloat16).float()
        digest.update(f"{plain} {list(weight.shape)}".encode() + some.cpu().numpy().tobytes())
    return digest.hexdigest()


# ---------------------------------------------------------------- on the model


class PlacedRewardModel:
    """A reward model that lies beside a policy's adapter, until `remove`."""

    def __init__(self, beside: AdapterBeside, micro_batch_tokens: int) -> None:
        self.beside = beside
        self.model = RewardModel(
            HeadedTrunk(beside.model, beside.trained, beside.active), micro_batch_tokens=micro_batch_tokens
        )

    def remove(self) -> None:
        """Takes it off the policy's model."""
        self.beside.remove()


def place(
    loaded: LoadedModel, name: str, micro_batch_tokens: int, saved: SavedRewardModel | None = None
) -> PlacedRewardModel:
    """Puts the reward model `saved` beside the policy of `loaded`; None: a fresh head on a copy of its adapter.

    `name` tells it from others on the same model. Raises ModelError where `saved` is of another base model.
    """
    if saved is not None and (found := base_fingerprint(loaded)) != saved.info.base:
        raise ModelError(
            f"{saved.folder}: this reward model was trained on '{saved.info.source}' (fingerprint "
            f"{saved.info.base[:12]}), and the model at hand is '{loaded.source}' ({found[:12]}); take the same model"
        )
    key = f"reward_{hashlib.sha256(name.encode()).hexdigest()[:8]}"  # PEFT's names hold no dots
    beside = put_adapter_beside(loaded.model, key, "a reward model", None if saved is None else saved.folder)
    placed = PlacedRewardModel(beside, micro_batch_tokens)
    if saved is not None:
        _load_head(placed.model, saved.folder / HEAD)
    return placed


@contextmanager
def placed_for(
    loaded: LoadedModel, name: str, micro_batch_tokens: int, saved: SavedRewardModel | None = None
) -> Iterator[PlacedRewardModel]:
    """`place`, for a block."""
    placed = place(loaded, name, micro_batch_tokens, saved)
    try:
        yield placed
    finally:
        placed.remove()


def _load_head(model: RewardModel, path: Path) -> None:
    from safetensors.torch import load_file

    check_tensors(path)
    saved, head = load_file(path), model.trunk.head.linear.state_dict()
    if {k: v.shape for k, v in saved.items()} != {k: v.shape for k, v in head.items()}:
        raise ModelError(
            f"{path}: expected a head of shapes {[list(v.shape) for v in head.values()]}, got "
            f"{[list(v.shape) for v in saved.values()]}; copy the reward model anew"
        )
    model.trunk.head.linear.load_state_dict(saved)


# ---------------------------------------------------------------- on the disk


def save_version(
    folder: Path, placed: PlacedRewardModel, info: RewardModelInfo, calibration: tuple[CalibrationSet, ...]
) -> None:
    """Writes ``folder/v…`` of `info.version`; an unfinished one of an earlier try is replaced, a finished one kept."""
    target = version_folder(folder, info.version)
    scratch = target.with_name(f".{target.name}")
    if not target.exists():
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            scratch.mkdir(parents=True)
            _write(scratch, placed, info, calibration)
            scratch.rename(target)
            sync_folder(folder)
        except OSError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise CheckpointError(
                f"{target}: cannot write the reward model ({error.strerror or error}); make room and run the same "
                "command again"
            ) from error


def _write(
    folder: Path, placed: PlacedRewardModel, info: RewardModelInfo, calibration: tuple[CalibrationSet, ...]
) -> None:
    from peft import get_peft_model_state_dict
    from safetensors.torch import save

    model, name = placed.beside.model, placed.beside.name
    model.peft_config[name].save_pretrained(str(folder))
    adapter = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    for file, tensors in ((ADAPTER_WEIGHTS, adapter), (HEAD, placed.model.trunk.head.linear.state_dict())):
        whole = {key: value.detach().cpu().clone().contiguous() for key, value in tensors.items()}
        write_synced(folder / file, save(whole))
    for file, content in ((CALIBRATION, calibration), (INFO, info)):
        write_synced(folder / file, msgspec.json.encode(content))
    sync_folder(folder)


def newest_version(folder: Path) -> SavedRewardModel | None:
    """The newest version in the folder of a reward model; None if there is none."""
    found = sorted(path for path in folder.glob("v*") if re.fullmatch(r"v\d{4,}", path.name))
    return open_version(found[-1]) if found else None


def open_version(folder: Path) -> SavedRewardModel:
    """The saved version in `folder`; ModelError naming the file if it is torn, pickled or of another format."""
    if not (folder / INFO).is_file():
        raise ModelError(f"no reward model at '{folder}': expected a folder with {INFO}")
    if strange := sorted(path.name for path in folder.iterdir() if path.name not in ALLOWED):
        raise ModelError(
            f"{folder / strange[0]}: refused; a reward model holds only {', '.join(sorted(ALLOWED))}, and pickled "
            "files can run code when they are read; remove it"
        )
    info = _read(folder / INFO, RewardModelInfo)
    if info.format != FORMAT:
        raise ModelError(f"{folder / INFO}: expected format {FORMAT}, got {info.format}; take a newer DeedRL")
    calibration = _read(folder / CALIBRATION, tuple[CalibrationSet, ...])
    for part, content in zip(info.calibration, calibration, strict=False):
        if part.hash != content.hash:
            raise ModelError(
                f"{folder / CALIBRATION}: expected the calibration set with the hash {part.hash[:12]}, got "
                f"{content.hash[:12]}: it was changed since; copy the reward model anew"
            )
    return SavedRewardModel(folder=folder, info=info, calibration=calibration)


def _read(path: Path, kind: type[Content]) -> Content:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{path}: cannot be read: {error}; copy the reward model anew") from error


def version_folder(folder: Path, version: int) -> Path:
    """Where a version lies in the folder of its reward model."""
    return folder / f"v{version:04d}"
