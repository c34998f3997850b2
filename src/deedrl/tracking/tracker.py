"""The tracker: one place to log to, any number of sinks behind it, none of which can stop a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from deedrl.errors import ConfigError, DeedRLError, suggest
from deedrl.redaction import redact, redact_text
from deedrl.tracking.console import ConsoleSink
from deedrl.tracking.jsonl import JsonlSink
from deedrl.tracking.sink import Number, Row, Sink
from deedrl.tracking.tables import bounded_rows
from deedrl.tracking.tensorboard import TensorBoardSink
from deedrl.tracking.trackio import TrackioSink
from deedrl.tracking.wandb import WandbSink

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

SINK_NAMES = ("console", "jsonl", "tensorboard", "trackio", "wandb")


class Tracker:
    """Passes metrics and tables on to its sinks; a sink that fails is warned of once and left out from then on."""

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = list(sinks)
        self._dropped_metrics: set[str] = set()

    @property
    def sinks(self) -> tuple[str, ...]:
        """Names of the sinks that still work."""
        return tuple(sink.name for sink in self._sinks)

    def log(self, metrics: Mapping[str, Any], *, step: int, stage: str) -> None:
        """Logs numbers as ``<stage>/<metric>``; None = not measured.

        NumPy and torch scalars are taken too. What is no number is left out with one warning per name.
        """
        numbers: dict[str, Number] = {}
        for name, value in metrics.items():
            full_name = f"{stage}/{name}"
            try:
                numbers[full_name] = _number(value)
            except (TypeError, ValueError, RuntimeError):  # NumPy and torch raise different ones
                self._warn_of_metric(full_name, value)
        self._each(lambda sink: sink.log(numbers, step=step, stage=stage))

    def table(self, name: str, rows: Sequence[Row], *, step: int) -> None:
        """Logs at most eight of `rows`, drawn at random, as the table `name` (write ``<stage>/<table>``)."""
        few = bounded_rows(rows, name=name, step=step)
        self._each(lambda sink: sink.table(name, few, step=step))

    def close(self) -> None:
        """Closes every sink; calling it again does nothing."""
        self._each(lambda sink: sink.close())
        self._sinks.clear()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _each(self, action: Callable[[Sink], None]) -> None:
        self._sinks = [sink for sink in self._sinks if _succeeds(sink.name, action, sink)]

    def _warn_of_metric(self, name: str, value: object) -> None:
        if name not in self._dropped_metrics:
            self._dropped_metrics.add(name)
            logger.warning("metric '%s': expected a number or None, got %s; left out", name, type(value).__name__)


def open_tracker(
    names: Sequence[str], folder: str | Path, *, config: Mapping[str, Any], console: Console | None = None
) -> Tracker:
    """A tracker with the sinks called `names` for the run folder `folder`; `config` reaches them redacted.

    Raises ConfigError for an unknown name or a missing package. A service that cannot be reached is left out with
    a warning. `console` is where the console sink prints (share it with a progress bar).
    """
    safe_config: Mapping[str, Any] = redact(config)
    sinks: list[Sink] = []
    for name in dict.fromkeys(names):
        _succeeds(name, lambda name: sinks.append(_open(name, Path(folder), safe_config, console)), name)
    return Tracker(sinks)


def _open(name: str, folder: Path, config: Mapping[str, Any], console: Console | None) -> Sink:
    match name:
        case "console":
            return ConsoleSink(console)
        case "jsonl":
            return JsonlSink(folder)
        case "tensorboard":
            return TensorBoardSink(folder, config)
        case "trackio":
            return TrackioSink(folder, config)
        case "wandb":
            return WandbSink(folder, config)
    raise ConfigError(f"expected trackers out of {', '.join(SINK_NAMES)}, got '{name}'{suggest(name, SINK_NAMES)}")


def _succeeds(name: str, action: Callable[[_T], object], argument: _T) -> bool:
    """Whether `action` went through: the boundary where a tracking service's trouble ends (case I06)."""
    try:
        action(argument)
    except DeedRLError:
        raise
    except Exception as error:  # noqa: BLE001
        trouble = redact_text(f"{type(error).__name__}: {error}")
        logger.warning("tracker '%s' failed and is switched off; the run goes on (%s)", name, trouble)
        return False
    return True


def _number(value: Any) -> Number:
    if value is None:
        return None
    number = value.item() if hasattr(value, "item") else value
    if not isinstance(number, int | float):
        raise TypeError(f"expected a number, got {type(number).__name__}")
    return int(number) if isinstance(number, int) else float(number)
