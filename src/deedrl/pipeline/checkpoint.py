"""Checkpoints as folders: tensors in safetensors, state in JSON, a manifest with checksums, never pickle.

A checkpoint is written under a temporary name, synced and renamed, so it is either complete or not there. Older ones
are removed only after a newer one is complete; the best one by score is always kept.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from deedrl.errors import CheckpointError
from deedrl.files import sync_folder, write_synced
from deedrl.training import processes

if TYPE_CHECKING:
    import torch

FORMAT = 1
TENSORS = "tensors.safetensors"
STATE = "state.json"
MANIFEST = "manifest.json"
_NAME = re.compile(r"^step-(\d{8})$")
_ALLOWED_SUFFIXES = {".safetensors", ".json"}


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a checkpoint."""

    sha256: str
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a complete checkpoint says of itself; written last."""

    format: int
    step: int
    files: dict[str, FileEntry]
    owner: str = ""
    """Config hash of the run that wrote it."""
    score: float | None = None
    """Held-out score, higher is better; None = not measured."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded checkpoint."""

    step: int
    tensors: dict[str, Any]
    """Name → `torch.Tensor` on the CPU."""
    state: dict[str, Any]
    """What was saved, as JSON gives it back (tuples are lists)."""
    score: float | None = None
    path: Path


class CheckpointFolder:
    """The checkpoints of one stage, each in a folder ``step-00000120``.

    Of several processes that train together one `writes`; the others wait for it and read.
    """

    def __init__(
        self,
        folder: Path,
        owner: str = "",
        keep_last: int = 2,
        warn: Callable[[str], None] | None = None,
        *,
        writes: bool = True,
    ) -> None:
        self.folder = Path(folder)
        self.owner = owner
        self.keep_last = max(1, keep_last)
        self.warn = warn or (lambda text: None)
        self.writes = writes

    def save(
        self, step: int, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any], score: float | None = None
    ) -> Path:
        """Writes a complete checkpoint, then removes those that are neither among the last `keep_last` nor the best.

        `state` must be plain JSON (no NaN). On a full disk superseded checkpoints are removed and the write is tried
        once more; then `CheckpointError` is raised and the newest complete checkpoint is intact.
        """
        if self.writes:
            self._save(step, tensors, state, score)
        processes.wait()
        return self.folder / f"step-{step:08d}"

    def _save(
        self, step: int, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any], score: float | None
    ) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_leftovers()
        try:
            self._write(step, tensors, state, score)
        except OSError as error:
            if error.errno != errno.ENOSPC or not self._prune(keep_last=1):
                raise self._write_error(step, error) from error
            try:
                self._write(step, tensors, state, score)
            except OSError as again:
                raise self._write_error(step, again) from again
        self._prune(self.keep_last)

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint; torn ones are skipped with a warning. None if there is none."""
        if self.writes:
            self._remove_leftovers()
        processes.wait()
        for path in reversed(self._paths()):
            try:
                return load_checkpoint(path, self.owner)
            except CheckpointError as error:
                self.warn(f"checkpoint skipped: {error}")
        return None

    def best(self) -> Checkpoint | None:
        """The complete checkpoint of the highest score (the earliest of equals); None if none was scored."""
        for _, path in self._ranked():
            try:
                return load_checkpoint(path, self.owner)
            except CheckpointError as error:
                self.warn(f"checkpoint skipped: {error}")
        return None

    # ------------------------------------------------------------ inside

    def _paths(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(entry for entry in self.folder.iterdir() if entry.is_dir() and _NAME.match(entry.name))

    def _ranked(self) -> list[tuple[float, Path]]:
        """Scored checkpoints, best first, the earlier first among equals."""
        scored: list[tuple[float, Path]] = []
        for path in self._paths():
            try:
                manifest = read_manifest(path)
            except CheckpointError:
                continue
            if manifest.score is not None:
                scored.append((manifest.score, path))
        return sorted(scored, key=lambda pair: -pair[0])

    def _write(
        self, step: int, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any], score: float | None
    ) -> Path:
        target = self.folder / f"step-{step:08d}"
        temporary = self.folder / f".tmp-{target.name}-{os.getpid()}"
        temporary.mkdir()
        try:
            _write_tensors(temporary / TENSORS, tensors)
            write_synced(temporary / STATE, _state_bytes(state))
            files = {name: _file_entry(temporary / name) for name in (TENSORS, STATE)}
            manifest = Manifest(format=FORMAT, step=step, files=files, owner=self.owner, score=score)
            write_synced(temporary / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2))
            sync_folder(temporary)
            if target.exists():
                os.rename(target, self.folder / f".old-{target.name}-{os.getpid()}")
            os.rename(temporary, target)
            sync_folder(self.folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._remove_leftovers()
        return target

    def _prune(self, keep_last: int) -> bool:
        """Removes superseded checkpoints; True if there were any. Only complete ones count as kept."""
        paths = self._paths()
        complete = [path for path in paths if _complete(path)]
        keep = set(complete[-keep_last:]) | {path for _, path in self._ranked()[:1]}
        superseded = [path for path in paths if path not in keep and complete and path < complete[-1]]
        for path in superseded:
            shutil.rmtree(path, ignore_errors=True)
        return bool(superseded)

    def _remove_leftovers(self) -> None:
        """Clears up after a killed process; only the one that holds the run's lock may call this."""
        for entry in list(self.folder.iterdir()) if self.folder.is_dir() else []:
            replaced = self.folder / entry.name.removeprefix(".old-").rpartition("-")[0]
            if entry.name.startswith(".old-") and not replaced.exists():
                os.rename(entry, replaced)  # killed between the two renames of a rewrite: the old one still counts
            elif entry.name.startswith((".tmp-", ".old-")):
                shutil.rmtree(entry, ignore_errors=True)

    def _write_error(self, step: int, error: OSError) -> CheckpointError:
        paths = [path for path in self._paths() if _complete(path)]
        intact = f"the newest complete one is {paths[-1]}" if paths else "there is no earlier one"
        return CheckpointError(
            f"{self.folder}: cannot write the checkpoint of step {step}: {error.strerror or error}; {intact}; "
            "make room and run the same command again to resume"
        )


# ---------------------------------------------------------------- reading


def load_checkpoint(path: Path, owner: str = "") -> Checkpoint:
    """Loads one checkpoint after checking its manifest and checksums.

    Raises `CheckpointError` if it is torn, of another run (`owner` given and different), or holds anything but
    safetensors and JSON: pickled files can run code when they are read and are never opened.
    """
    path = Path(path)
    _refuse_unsafe(path)
    manifest = read_manifest(path)
    if owner and manifest.owner and manifest.owner != owner:
        raise CheckpointError(
            f"{path}: belongs to another run; expected config hash {owner[:12]}, got {manifest.owner[:12]}"
        )
    for name, entry in manifest.files.items():
        if _safe_entry(path / name) != entry:
            raise CheckpointError(f"{path}: torn: {name} is missing or its checksum differs; use an earlier checkpoint")
    for name in (TENSORS, STATE):
        if name not in manifest.files:
            raise CheckpointError(f"{path}: torn: the manifest does not list {name}")
    from safetensors.torch import load_file

    return Checkpoint(
        step=manifest.step,
        tensors=load_file(path / TENSORS),
        state=json.loads((path / STATE).read_bytes()),
        score=manifest.score,
        path=path,
    )


def read_manifest(path: Path) -> Manifest:
    """The manifest of the checkpoint folder `path`; missing or broken is a `CheckpointError`."""
    try:
        manifest = msgspec.json.decode((path / MANIFEST).read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: torn: expected {MANIFEST}, found none; use an earlier checkpoint") from None
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{path}: torn: {MANIFEST} cannot be read: {error}") from error
    if manifest.format != FORMAT:
        raise CheckpointError(f"{path}: expected checkpoint format {FORMAT}, got {manifest.format}")
    return manifest


def _refuse_unsafe(path: Path) -> None:
    if not path.exists():
        raise CheckpointError(f"{path}: no such checkpoint")
    for entry in sorted(path.iterdir()) if path.is_dir() else [path]:
        if entry.suffix not in _ALLOWED_SUFFIXES or not entry.is_file():
            raise CheckpointError(
                f"{entry}: refused; a checkpoint holds only {', '.join(sorted(_ALLOWED_SUFFIXES))} files, "
                "and pickled ones can run code when read; convert it to safetensors first"
            )
    if not path.is_dir():
        raise CheckpointError(f"{path}: expected a checkpoint folder with {MANIFEST}, got a file")


def _complete(path: Path) -> bool:
    """Cheap check: manifest present and file sizes right (checksums are checked on loading)."""
    try:
        files = read_manifest(path).files
        return all((path / name).stat().st_size == entry.bytes for name, entry in files.items())
    except (CheckpointError, OSError):
        return False


def _safe_entry(path: Path) -> FileEntry | None:
    try:
        return _file_entry(path)
    except OSError:
        return None


# ---------------------------------------------------------------- writing


def _file_entry(path: Path) -> FileEntry:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileEntry(sha256=digest, bytes=path.stat().st_size)


def _write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    from safetensors.torch import save

    # Cloned, for safetensors refuses tensors that share memory (tied weights) and ones with gaps.
    write_synced(path, save({name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}))


def _state_bytes(state: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(state, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the state of a checkpoint must be plain JSON without NaN: {error}") from error
