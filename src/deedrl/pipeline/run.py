"""The run folder: everything a recipe produced, safe against kill -9 at any moment.

``recipe.yaml`` is the fully resolved recipe; ``events.jsonl`` is append-only and synced to disk line by line, so an
event that was reported is never lost. One process at a time may write a run; those that train with it read it.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec
from portalocker import LOCK_EX, LOCK_NB, Lock
from portalocker.exceptions import AlreadyLocked

import deedrl
from deedrl.config import differences, dump_yaml, read_yaml, to_plain
from deedrl.errors import ConfigError, StoreError
from deedrl.files import write_atomically
from deedrl.pipeline.checkpoint import CheckpointFolder
from deedrl.pipeline.recipe import Recipe, config_hash
from deedrl.redaction import redact
from deedrl.training import processes

EVENTS = "events.jsonl"
RECIPE = "recipe.yaml"
SUMMARY = "summary.json"
REPORT = "report.html"
METRICS = "metrics.jsonl"
ADAPTER = "adapter"
_REPLACED = ".adapter-old"
_LOCK = ".lock"


class StageResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished stage left in the events."""

    name: str
    seconds: float
    """Wall time of the attempt that finished it."""
    metrics: dict[str, Any] = {}


class Run:
    """A run folder opened for writing; use as a context manager, which holds the lock.

    `warnings` says in words what was found broken and repaired when the folder was opened.
    """

    def __init__(self, folder: Path, recipe: Recipe, lock: Lock[IO[str]] | None) -> None:
        self.folder = folder
        self.recipe = recipe
        self.config_hash = config_hash(recipe)
        self.run_id = ""
        self.attempt = 1
        self.warnings: list[str] = []
        self.writes = lock is not None
        """False in the processes that train with the one that holds the lock: they read, and what they record is
        dropped."""
        self._lock = lock
        self._finished: dict[str, StageResult] = {}

    @classmethod
    def open(cls, folder: Path, recipe: Recipe) -> Run:
        """Starts a run in an empty or missing folder, or resumes the one that is there.

        Of several processes that train together the first opens it, and the others read what it left. Raises
        `ConfigError` if the folder holds something else, was made with other settings, or is being written by another
        process.
        """
        folder = Path(folder)
        if not processes.is_first():
            processes.wait()
            return cls._beside(folder, recipe)
        run = cls._locked(folder, recipe)
        processes.wait()
        return run

    @classmethod
    def _locked(cls, folder: Path, recipe: Recipe) -> Run:
        _refuse_foreign_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(folder / _LOCK, flags=LOCK_EX | LOCK_NB, timeout=0)
        try:
            lock.acquire()
        except AlreadyLocked:
            raise ConfigError(
                f"{folder}: another process is writing this run; wait for it to end or choose another folder"
            ) from None
        run = cls(folder, recipe, lock)
        try:
            run._start_or_resume()
        except BaseException:
            lock.release()
            raise
        return run

    @classmethod
    def _beside(cls, folder: Path, recipe: Recipe) -> Run:
        """The run as the first process has opened it."""
        run = cls(folder, recipe, None)
        events, _ = read_events(folder / EVENTS)
        started = next((event for event in events if event["event"] == "run_started"), None)
        if started is None or started["config_hash"] != run.config_hash:
            raise StoreError(
                f"{folder / EVENTS}: expected the run that the first process has opened, found "
                f"{'none' if started is None else 'one with other settings'}; give all processes the same recipe and a "
                "folder on a file system that they share"
            )
        run.run_id = started["run_id"]
        run.attempt = max(int(event.get("attempt", 1)) for event in events)
        run._finished = finished_stages(events)
        return run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives the lock back; the folder stays as it is."""
        if self._lock is not None:
            self._lock.release()

    # ------------------------------------------------------------ what lies where

    @property
    def resumed(self) -> bool:
        """True if an earlier attempt already wrote to this folder."""
        return self.attempt > 1

    @property
    def trajectories(self) -> Path:
        """Folder of trajectory files, one per stage by convention ``<stage>.jsonl``."""
        return self._made("trajectories")

    def checkpoints(self, stage: str, warn: Callable[[str], None] | None = None) -> CheckpointFolder:
        """The checkpoints of one stage; a torn one is recorded as an event and told to `warn`."""

        def warned(text: str) -> None:
            self.record("warning", text=text)
            if warn is not None:
                warn(text)

        folder = self._made("checkpoints") / stage
        keep_last = self.recipe.checkpoints.keep_last
        return CheckpointFolder(folder, owner=self.config_hash, keep_last=keep_last, warn=warned, writes=self.writes)

    def preferences(self, stage: str) -> Path:
        """Folder of what the dpo stage called `stage` made pairs of."""
        folder = self._made("preferences") / stage
        folder.mkdir(exist_ok=True)
        return folder

    def reward_models(self, stage: str) -> Path:
        """Folder of the versions of the reward model of the stage called `stage`."""
        folder = self._made("reward-models") / stage
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def adapter_folder(self) -> Path:
        """Where the latest policy lies as a PEFT adapter (or a model folder when all weights are trained)."""
        return self.folder / ADAPTER

    @property
    def metrics_path(self) -> Path:
        """JSON lines of all logged metrics."""
        return self.folder / METRICS

    def replace_adapter(self, written: Path) -> None:
        """Puts the folder `written` in the place of the adapter; killed in between, the next opening puts it right."""
        replaced = self.folder / _REPLACED
        shutil.rmtree(replaced, ignore_errors=True)
        if self.adapter_folder.exists():
            self.adapter_folder.rename(replaced)
        written.rename(self.adapter_folder)
        shutil.rmtree(replaced, ignore_errors=True)

    def write_json(self, name: str, data: Any) -> Path:
        """Writes `data` as JSON into the run folder in one step: readers see the old file or the new one."""
        path = self.folder / name
        if self.writes:
            replace_text(path, msgspec.json.format(_public_json(data), indent=2).decode() + "\n")
        return path

    def _made(self, name: str) -> Path:
        folder = self.folder / name
        self._require_present()
        folder.mkdir(exist_ok=True)
        return folder

    def _require_present(self) -> None:
        if not (self.folder / EVENTS).exists():
            raise StoreError(
                f"{self.folder}: expected {EVENTS} of this run, found none: the folder was removed or moved while the "
                "run was going on; put it back, or run the same command again to start afresh"
            )

    # ------------------------------------------------------------ events

    def record(self, event: str, **fields: Any) -> None:
        """Appends one event and returns when it is on the disk."""
        if not self.writes:
            return
        if event != "run_started":
            self._require_present()
        line = {"time": time.time(), "attempt": self.attempt, "event": event, **fields}
        append_line(self.folder / EVENTS, _public_json(line).decode())

    def finished(self, stage: str) -> StageResult | None:
        """The result of `stage` if this run finished it, in this attempt or an earlier one."""
        return self._finished.get(stage)

    def start_stage(self, stage: str) -> None:
        """Records that `stage` begins (or begins again after an interruption)."""
        self.record("stage_started", stage=stage)

    def finish_stage(self, stage: str, seconds: float, metrics: Mapping[str, Any]) -> StageResult:
        """Records that `stage` is complete; from now on a resumed run skips it."""
        result = StageResult(name=stage, seconds=seconds, metrics=dict(metrics))
        self.record("stage_finished", stage=stage, seconds=seconds, metrics=result.metrics)
        self._finished[stage] = result
        return result

    # ------------------------------------------------------------ opening

    def _start_or_resume(self) -> None:
        self.warnings += repair_tail(self.folder / EVENTS)
        events, problems = read_events(self.folder / EVENTS)
        self.warnings += problems
        first = next((event for event in events if event["event"] == "run_started"), None)
        if first is None:
            if events or problems:
                raise StoreError(
                    f"{self.folder / EVENTS}: expected the event 'run_started' of the run, found none; "
                    f"{problems[0] if problems else 'the file begins with another event'}; put the file back as it "
                    "was, or choose another folder"
                )
            self._start()
            return
        self._refuse_other_settings(first)
        self._restore_adapter()
        self.run_id = first["run_id"]
        self.attempt = 1 + max(int(event.get("attempt", 1)) for event in events)
        self._finished = finished_stages(events)
        self.record("run_resumed", warnings=self.warnings)

    def _restore_adapter(self) -> None:
        """A process killed between the two renames of `replace_adapter` leaves the policy under its other name."""
        if latest_adapter(self.folder) == self.folder / _REPLACED:
            (self.folder / _REPLACED).rename(self.adapter_folder)
            self.warnings.append(f"{self.adapter_folder}: an interrupted process left it as {_REPLACED}; put back")

    def _start(self) -> None:
        self.run_id = uuid.uuid4().hex[:12]
        header = f"# Resolved by deedrl {deedrl.__version__}; config hash {self.config_hash}\n"
        replace_text(self.folder / RECIPE, header + dump_yaml(redact(to_plain(self.recipe))))
        self.record(
            "run_started",
            run_id=self.run_id,
            name=self.recipe.name,
            config_hash=self.config_hash,
            seed=self.recipe.seed,
            deedrl=deedrl.__version__,
            python=platform.python_version(),
            platform=platform.platform(),
            processors=os.cpu_count(),
        )

    def _refuse_other_settings(self, first: Mapping[str, Any]) -> None:
        if first["config_hash"] == self.config_hash:
            return
        changes = differences(read_yaml(self.folder / RECIPE), redact(to_plain(self.recipe)))
        shown = "\n".join(f"  {change}" for change in changes[:12])
        more = f"\n  … and {len(changes) - 12} more" if len(changes) > 12 else ""
        raise ConfigError(
            f"{self.folder}: holds a run with other settings; expected config hash {first['config_hash'][:12]}, "
            f"got {self.config_hash[:12]}; what differs (there → now):\n{shown}{more}\n"
            "give this recipe another folder with --out, or go back to those settings"
        )


def latest_adapter(folder: Path) -> Path | None:
    """Where the policy of the run in `folder` lies; None if it has not trained one."""
    return next((path for path in (folder / ADAPTER, folder / _REPLACED) if path.is_dir()), None)


def _refuse_foreign_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: expected a folder for the run, got a file; choose another with --out")
    # An empty file of events is what a process killed before its first one leaves, or the end of a run's memory.
    if not folder.exists() or ((folder / EVENTS).exists() and (folder / EVENTS).stat().st_size > 0):
        return
    foreign = sorted(entry.name for entry in folder.iterdir() if entry.name not in {_LOCK, RECIPE, EVENTS})
    foreign = [name for name in foreign if not name.startswith(f".{RECIPE}.")]
    if foreign:
        raise ConfigError(
            f"{folder}: expected an empty folder or a run (with {EVENTS}), found {foreign[0]}; "
            "choose another with --out"
        )


# ---------------------------------------------------------------- reading a run without opening it


class _Event(msgspec.Struct):
    """What every event has."""

    event: str
    attempt: int = 1
    time: float = 0.0


class _RunStarted(_Event, kw_only=True):
    run_id: str
    config_hash: str


class _StageFinished(_Event, kw_only=True):
    stage: str
    seconds: float
    metrics: dict[str, Any] | None = None


_SHAPES: dict[str, type[_Event]] = {"run_started": _RunStarted, "stage_finished": _StageFinished}


def read_events(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """All readable events in order, and in words the lines that are not (file and line number)."""
    events: list[dict[str, Any]] = []
    problems: list[str] = []
    if not path.exists():
        return events, problems
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            event = msgspec.json.decode(line)
            name = msgspec.convert(event, _Event).event
            msgspec.convert(event, _SHAPES.get(name, _Event))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            problems.append(f"{path}, line {number}: skipped, not an event: {error}")
        else:
            events.append(event)
    return events, problems


def finished_stages(events: list[dict[str, Any]]) -> dict[str, StageResult]:
    """Results by stage name, in the order the stages finished."""
    return {
        event["stage"]: StageResult(name=event["stage"], seconds=event["seconds"], metrics=event.get("metrics") or {})
        for event in events
        if event["event"] == "stage_finished"
    }


# ---------------------------------------------------------------- writing that survives


def _public_json(data: Any) -> bytes:
    """`data` as JSON without secrets; halves of surrogate pairs (of a path in an error text, say) become ``?``."""
    plain = redact(msgspec.to_builtins(data))
    try:
        return msgspec.json.encode(plain)
    except UnicodeEncodeError:
        return json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace")


def append_line(path: Path, text: str) -> None:
    """Appends `text` and a newline and syncs; on failure (disk full) takes back what was written and raises."""
    data = (text + "\n").encode("utf-8", errors="replace")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        try:
            written = 0
            while written < len(data):
                written += os.write(descriptor, data[written:])
            os.fsync(descriptor)
        except OSError as error:
            os.ftruncate(descriptor, size)
            raise StoreError(
                f"{path}: cannot append ({error.strerror}); earlier lines are intact; "
                "make room and run the same command again to resume"
            ) from error
    finally:
        os.close(descriptor)


def replace_text(path: Path, text: str) -> None:
    """Replaces a text file in one step; on failure the old file stays."""
    try:
        write_atomically(path, text.encode("utf-8", errors="replace"))
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror}); the old file, if any, is intact") from error


def repair_tail(path: Path) -> list[str]:
    """Cuts a half-written last line, which was never reported, off a JSON-lines file; says so in words."""
    if not path.exists():
        return []
    data = path.read_bytes()
    if not data or data.endswith(b"\n"):
        return []
    start = data.rfind(b"\n") + 1
    try:
        msgspec.json.decode(data[start:])
    except (msgspec.DecodeError, UnicodeDecodeError):
        os.truncate(path, start)
        line = data.count(b"\n") + 1
        return [f"{path}, line {line}: half-written ({len(data) - start} bytes) by an interrupted process; removed"]
    with open(path, "ab") as file:
        file.write(b"\n")
    return []
