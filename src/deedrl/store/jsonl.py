"""The trajectory store: an append-only file of JSON lines that survives crashes, full disks and parallel writers.

Rules it keeps:

- A record is in the file, whole, when `append` returns; one write under a lock puts it there.
- Nothing already in the file is ever changed. A torn tail is closed with a newline, neither cut nor continued.
- A write that fails is cut off again and raised at once.
- A line that is no trajectory is counted and named: never a crash, never a reward of 0.
- One episode counts once: of several complete lines with one id the last is read.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from portalocker.exceptions import AlreadyLocked, LockException

from deedrl.errors import StoreError
from deedrl.files import append_bytes, sync_folder
from deedrl.store import codec
from deedrl.store.files import locked, read_line_at, read_lines
from deedrl.store.index import EpisodeIndex, Origin, repeated_episodes
from deedrl.types import Record, Trajectory

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_S = 60.0
MAX_LISTED_BAD_LINES = 100


class BadLine(Record, frozen=True):
    """A line that holds no trajectory."""

    path: str
    line: int
    """Counted from 1."""
    offset: int
    """Byte at which the line starts."""
    kind: Literal["torn", "quarantined"]
    """``torn``: not JSON; ``quarantined``: JSON, but a field is missing or of the wrong type."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.reason}"


class ScanReport(Record, frozen=True):
    """What a store's file holds, line by line; blank lines are not counted."""

    good: int = 0
    """Distinct episodes: as many as iterating yields."""
    duplicates: int = 0
    """Complete lines that a later line with the same episode id replaces."""
    quarantined: int = 0
    torn: int = 0
    bad: tuple[BadLine, ...] = ()
    """The first 100 bad lines."""


class _Line(NamedTuple):
    offset: int
    raw: bytes
    content: Trajectory | BadLine


class TrajectoryStore:
    """Trajectories of one run in the JSON-lines file `path`, which the first append creates.

    `run_id` and `config_hash`, where given, are the only ones this store accepts: a file that holds others, or a
    trajectory that names others, raises StoreError (case E10); a trajectory that names none gets them. Reading
    needs neither. `sync_interval_s` says how often appends also reach the physical disk: 0.0 at each append, None
    never. It matters for power cuts only; a killed process loses nothing either way.

    Several processes and threads may append to one file. Reading takes no lock; a missing file reads as empty.
    """

    def __init__(
        self, path: str | Path, *, run_id: str = "", config_hash: str = "", sync_interval_s: float | None = 1.0
    ) -> None:
        self.path = Path(path)
        self.run_id = run_id
        self.config_hash = config_hash
        self.sync_interval_s = sync_interval_s
        self.quarantine_path = self.path.with_name(f"{self.path.name}.quarantine")
        self._lock_path = self.path.with_name(f"{self.path.name}.lock")
        self._index = EpisodeIndex(self.path)
        self._last_sync_s = -math.inf
        if self.path.is_dir():
            raise StoreError(f"expected a file of trajectories, got the folder {self.path}; name a .jsonl file in it")
        if run_id or config_hash:
            self._index.refresh()
            self._refuse_other_runs()

    # ---------------------------------------------------------------- writing

    def append(self, trajectory: Trajectory) -> bool:
        """Writes one record, which is in the file when this returns; False if its episode id was there before.

        A record with a known id is written all the same and replaces the earlier one on reading. Raises StoreError
        when it cannot be written (disk full, NaN inside, another run's record); the file is then as it was.
        """
        return self.append_many((trajectory,)) == 1

    def append_many(self, trajectories: Iterable[Trajectory]) -> int:
        """Writes all the records or none of them; returns how many episode ids were not there before."""
        records = [self._stamped(trajectory) for trajectory in trajectories]
        lines = [codec.encode(record) for record in records]
        try:
            with locked(self._lock_path, LOCK_TIMEOUT_S):
                return self._append_locked(records, lines)
        except AlreadyLocked as error:
            raise StoreError(
                f"expected to lock {self.path} within {LOCK_TIMEOUT_S:.0f} s, but another process holds the lock; "
                f"find it by who has {self._lock_path} open, end it and run again"
            ) from error
        except LockException as error:
            raise StoreError(
                f"cannot lock {self._lock_path}: {error}; put the run on a file system that has locks"
            ) from error
        except OSError as error:
            raise StoreError(
                f"cannot write to {self.path}: {error.strerror or error}; the records already there are intact. "
                "Free space or fix the permissions, then give the same command again to resume"
            ) from error

    def _append_locked(self, records: list[Trajectory], lines: list[bytes]) -> int:
        self._index.refresh()
        self._refuse_other_runs()
        new_ids = {record.episode_id for record in records if record.episode_id not in self._index}
        up_to_date = self._index.read_up_to == self._index.size
        data = b"".join(lines)
        offset = self._write(data)
        if up_to_date:
            self._note_own(records, offset + len(data))
        return len(new_ids)

    def _write(self, data: bytes) -> int:
        with open(self.path, "ab+", buffering=0) as file:
            offset = append_bytes(file, data)
            if self._sync_is_due():
                os.fsync(file.fileno())
                if offset == 0:
                    # The record is in the file; a failure here must not make the caller append it again.
                    with contextlib.suppress(OSError):
                        sync_folder(self.path.parent)
        return offset

    def _sync_is_due(self) -> bool:
        now_s = time.monotonic()
        if self.sync_interval_s is None or now_s - self._last_sync_s < self.sync_interval_s:
            return False
        self._last_sync_s = now_s
        return True

    def _note_own(self, records: list[Trajectory], end: int) -> None:
        """Saves the next refresh from reading what this process has just written."""
        for record in records:
            self._index.add(record.episode_id, Origin(record.provenance.run_id, record.provenance.config_hash))
        self._index.read_up_to = self._index.size = end

    # ---------------------------------------------------------------- whose records

    def _stamped(self, trajectory: Trajectory) -> Trajectory:
        origin = trajectory.provenance
        run_id, config_hash = origin.run_id or self.run_id, origin.config_hash or self.config_hash
        self._refuse(Origin(run_id, config_hash), f"a trajectory (episode '{trajectory.episode_id}')")
        if (run_id, config_hash) == (origin.run_id, origin.config_hash):
            return trajectory
        provenance = msgspec.structs.replace(origin, run_id=run_id, config_hash=config_hash)
        return msgspec.structs.replace(trajectory, provenance=provenance)

    def _refuse_other_runs(self) -> None:
        for origin in self._index.origins:
            self._refuse(origin, f"records in {self.path}")

    def _refuse(self, origin: Origin, what: str) -> None:
        pairs = (("run id", self.run_id, origin.run_id), ("config hash", self.config_hash, origin.config_hash))
        for name, expected, got in pairs:
            if expected and got != expected:
                raise StoreError(
                    f"expected {name} '{expected}' in {what}, got '{got}'; runs with different settings do not share "
                    "a file: choose another output folder, or resume with the settings that made this one"
                )

    # ---------------------------------------------------------------- reading

    def __iter__(self) -> Iterator[Trajectory]:
        """The distinct episodes in file order, one at a time, as of the moment iteration starts.

        Bad lines are skipped with a logged warning each (`scan` lists them); a line of a newer schema raises.
        """
        keeper = self._keeper()
        for line in self._lines(keeper.size):
            if isinstance(line.content, BadLine):
                logger.warning("skipped %s", line.content)
            elif keeper.keeps(line.content.episode_id, line.offset):
                yield line.content

    def episode_ids(self) -> set[str]:
        """Ids of the episodes that are there whole: what a resumed run need not do again."""
        return {trajectory.episode_id for trajectory in self}

    def scan(self) -> ScanReport:
        """Reads every line and reports; bad lines are copied to the sibling file ``<name>.quarantine``.

        The store's own file is not touched. A record that another process is writing at this moment counts as torn.
        """
        keeper = self._keeper()
        counts = {"good": 0, "duplicates": 0, "quarantined": 0, "torn": 0}
        listed: list[BadLine] = []
        with _QuarantineFile(self.quarantine_path) as quarantine:
            for line in self._lines(keeper.size):
                if isinstance(line.content, BadLine):
                    counts[line.content.kind] += 1
                    quarantine.add(line.content, line.raw)
                    if len(listed) < MAX_LISTED_BAD_LINES:
                        listed.append(line.content)
                else:
                    kept = keeper.keeps(line.content.episode_id, line.offset)
                    counts["good" if kept else "duplicates"] += 1
        return ScanReport(bad=tuple(listed), **counts)

    def _lines(self, size: int) -> Iterator[_Line]:
        if size == 0:
            return
        try:
            for number, (offset, raw) in enumerate(read_lines(self.path, 0, size), start=1):
                if not raw.isspace():
                    yield _Line(offset, raw, self._decoded(raw, number, offset))
        except OSError as error:
            raise self._unreadable(error) from error

    def _keeper(self) -> _LastComplete:
        """Looks through the file as it is now; `size` of what it returns is how far."""
        try:
            return _LastComplete(self.path)
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> StoreError:
        return StoreError(f"cannot read {self.path}: {error.strerror or error}")

    def _decoded(self, raw: bytes, number: int, offset: int) -> Trajectory | BadLine:
        try:
            return codec.decode(raw)
        except codec.NewerSchema as error:
            raise StoreError(f"{self.path}:{number}: {error}") from error
        except codec.TornRecord as error:
            return BadLine(path=str(self.path), line=number, offset=offset, kind="torn", reason=str(error))
        except codec.InvalidRecord as error:
            return BadLine(path=str(self.path), line=number, offset=offset, kind="quarantined", reason=str(error))


class _LastComplete:
    """Decides which of several lines with one episode id is read: the last that is a whole trajectory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = path.stat().st_size if path.exists() else 0
        self._repeated = repeated_episodes(path, self.size) if self.size else {}
        self._chosen: dict[str, int | None] = {}

    def keeps(self, episode_id: str, offset: int) -> bool:
        offsets = self._repeated.get(episode_id)
        if offsets is None:
            return True
        if episode_id not in self._chosen:
            self._chosen[episode_id] = self._choose(offsets)
        return self._chosen[episode_id] == offset

    def _choose(self, offsets: Sequence[int]) -> int | None:
        with self._path.open("rb") as file:
            for offset in reversed(offsets):
                try:
                    codec.decode(read_line_at(file, offset))
                except (codec.TornRecord, codec.InvalidRecord):
                    continue
                except codec.NewerSchema:
                    return offset  # the reader meets this line too and names it
                return offset
        return None


class _QuarantineFile:
    """Copies of bad lines with place and reason, one JSON line each; made anew by every scan, absent if all is well."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self._unwritable = False

    def __enter__(self) -> _QuarantineFile:
        return self

    def add(self, bad: BadLine, raw: bytes) -> None:
        if self._unwritable:
            return
        entry = msgspec.to_builtins(bad) | {"text": raw.decode("utf-8", "replace").rstrip("\n")}
        try:
            with self._draft.open("ab") as file:
                file.write(msgspec.json.encode(entry) + b"\n")
        except OSError as error:
            self._unwritable = True
            logger.warning("cannot copy bad lines to %s: %s; they are still in the source", self._path, error)

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None or self._unwritable:
            self._draft.unlink(missing_ok=True)
        elif self._draft.exists():
            os.replace(self._draft, self._path)
