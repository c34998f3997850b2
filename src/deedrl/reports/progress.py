"""Live progress in four forms: bars for people, plain lines for logs, JSON lines for programs, or nothing.

Bars and plain lines go to stderr, so that stdout stays free for results; JSON lines go to stdout.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Literal

from deedrl.redaction import redact_text, strip_ansi

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from deedrl.pipeline.context import Progress

Figures = Mapping[str, float | int | str | None]
Mode = Literal["bar", "plain", "json", "quiet"]
PLAIN_INTERVAL_S = 10.0


def make_progress(mode: Mode | None = None, console: Console | None = None) -> Progress:
    """Progress in the given form; None picks bars on a terminal and plain lines elsewhere."""
    if mode is None:
        mode = "bar" if sys.stderr.isatty() else "plain"
    if mode == "json":
        return JsonProgress()
    if mode == "quiet":
        return QuietProgress()
    return BarProgress(console) if mode == "bar" else PlainProgress()


def figures_text(figures: Figures) -> str:
    """``completion 62.5 %  reward 0.71``: shares of things that are rates as percentages, absent ones as –."""
    return "  ".join(f"{clean(name.replace('_', ' '))} {_figure(name, value)}" for name, value in figures.items())


_RATES = ("completion", "format", "accuracy", "rate", "share", "success", "solved")


def _figure(name: str, value: float | int | str | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float):
        if any(word in name for word in _RATES) and "learning" not in name and 0 <= value <= 1:
            return f"{100 * value:.1f} %"
        return f"{value:.3g}"
    return str(value)


def clean(text: str) -> str:
    """Text that is safe on a console: no secrets, no terminal escapes, one line."""
    return redact_text(strip_ansi(text)).replace("\n", " ")


def duration_text(seconds: float) -> str:
    """``47 s``, ``12 min 05 s`` or ``3 h 20 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


# ---------------------------------------------------------------- nothing


class _QuietBar:
    def advance(self, count: int = 1, **figures: float | int | str | None) -> None:
        pass


class QuietProgress:
    """Shows warnings only."""

    @contextmanager
    def bar(self, title: str, total: int, unit: str, done: int = 0) -> Iterator[_QuietBar]:
        yield _QuietBar()

    def say(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        print(f"warning: {clean(text)}", file=sys.stderr, flush=True)


class NoProgress(QuietProgress):
    """Shows nothing: of processes beside the one that speaks."""

    def warn(self, text: str) -> None:
        pass


# ---------------------------------------------------------------- plain lines


class _PlainBar:
    def __init__(self, owner: PlainProgress, title: str, total: int, unit: str, done: int) -> None:
        self.owner, self.title, self.total, self.unit = owner, title, total, unit
        self.first, self.done = done, done
        self.started = self.shown = time.monotonic()
        self.figures: Figures = {}

    def advance(self, count: int = 1, **figures: float | int | str | None) -> None:
        self.done += count
        self.figures = {**self.figures, **figures}
        now = time.monotonic()
        if now - self.shown >= self.owner.interval_s and self.done < self.total:
            self.shown = now
            self.show()

    def show(self, ended: bool = False) -> None:
        elapsed = max(time.monotonic() - self.started, 1e-9)
        rate = (self.done - self.first) / elapsed
        if ended:
            pace = f"in {duration_text(elapsed)}"
        else:
            left = duration_text((self.total - self.done) / rate) if rate > 0 else "unknown"
            pace = f"{rate:.3g} {self.unit}/s, {left} left"
        figures = figures_text(self.figures)
        self.owner.say(f"{self.title}: {self.done}/{self.total} {self.unit}, {pace}{'  ' + figures if figures else ''}")


class PlainProgress:
    """A line when work starts and ends, and one every ten seconds between."""

    def __init__(self, stream: IO[str] | None = None, interval_s: float = PLAIN_INTERVAL_S) -> None:
        self.stream = stream
        self.interval_s = interval_s

    @contextmanager
    def bar(self, title: str, total: int, unit: str, done: int = 0) -> Iterator[_PlainBar]:
        bar = _PlainBar(self, title, total, unit, done)
        self.say(f"{title}: {total} {unit}" + (f", {done} done before" if done else ""))
        yield bar
        bar.show(ended=True)

    def say(self, text: str) -> None:
        print(clean(text), file=self.stream or sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}")


# ---------------------------------------------------------------- JSON lines


class _JsonBar:
    def __init__(self, owner: JsonProgress, title: str, total: int, unit: str, done: int) -> None:
        self.owner, self.title, self.total, self.unit, self.done = owner, title, total, unit, done

    def advance(self, count: int = 1, **figures: float | int | str | None) -> None:
        self.done += count
        self.emit("progress", **figures)

    def emit(self, kind: str, **figures: float | int | str | None) -> None:
        fields = {"title": self.title, "done": self.done, "total": self.total, "unit": self.unit, "figures": figures}
        self.owner.emit(kind, **fields)


class JsonProgress:
    """One JSON object a line: ``kind`` is started, progress, ended, message or warning."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self.stream = stream

    @contextmanager
    def bar(self, title: str, total: int, unit: str, done: int = 0) -> Iterator[_JsonBar]:
        bar = _JsonBar(self, title, total, unit, done)
        bar.emit("started")
        yield bar
        bar.emit("ended")

    def say(self, text: str) -> None:
        self.emit("message", text=clean(text))

    def warn(self, text: str) -> None:
        self.emit("warning", text=clean(text))

    def emit(self, kind: str, **fields: object) -> None:
        print(json.dumps({"kind": kind, "time": round(time.time(), 3), **fields}), file=self.stream, flush=True)


# ---------------------------------------------------------------- bars


class _RichBar:
    def __init__(self, progress: RichProgress, task: TaskID, unit: str, done: int) -> None:
        self.progress, self.task, self.unit = progress, task, unit
        self.first, self.done = done, done
        self.started = time.monotonic()
        self.figures: Figures = {}

    def advance(self, count: int = 1, **figures: float | int | str | None) -> None:
        self.done += count
        self.figures = {**self.figures, **figures}
        rate = (self.done - self.first) / max(time.monotonic() - self.started, 1e-9)
        pace = f"{rate:.1f} {self.unit}/s" if rate >= 1 else f"{1 / rate:.1f} s/{self.unit.removesuffix('s')}"
        self.progress.update(self.task, advance=count, pace=pace, figures=figures_text(self.figures))


class BarProgress:
    """Bars with rate, remaining time and live figures; nested work is indented below its parent."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        self.console = console or Console(stderr=True)
        self._live: RichProgress | None = None
        self._depth = 0

    @contextmanager
    def bar(self, title: str, total: int, unit: str, done: int = 0) -> Iterator[_RichBar]:
        from rich.markup import escape

        outermost = self._live is None
        live = self._live or self._made_live()
        self._live = live
        description = "  " * self._depth + escape(clean(title))
        task = live.add_task(description, total=total, completed=done, pace="", figures="")
        self._depth += 1
        bar = _RichBar(live, task, unit, done)
        try:
            yield bar
        finally:
            self._depth -= 1
            live.stop_task(task)
            if outermost:
                live.stop()
                self._live = None
            else:
                live.remove_task(task)

    def _made_live(self) -> RichProgress:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        live = Progress(
            TextColumn("[bold]{task.description:<14}"),
            BarColumn(bar_width=24, complete_style="cyan", finished_style="green"),
            MofNCompleteColumn(),
            TextColumn("[dim]{task.fields[pace]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("{task.fields[figures]}", markup=False),
            console=self.console,
        )
        live.start()
        return live

    def say(self, text: str) -> None:
        self.console.print(clean(text), markup=False, highlight=False)

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {clean(text)}", style="yellow", markup=False, highlight=False)
