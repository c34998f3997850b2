"""What the report page shows, as plain records built from a run folder alone."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from deedrl.errors import StoreError
from deedrl.evaluation.summary import UNSEEN_SUFFIX
from deedrl.pipeline.run import EVENTS, METRICS, RECIPE, SUMMARY, finished_stages, read_events
from deedrl.reports.bands import BandHistory, band_histories
from deedrl.reports.progress import duration_text
from deedrl.reports.tables import HEADLINES, ShownFigure, change_text, figure, read_summary
from deedrl.types import Trajectory

SOURCE_TITLES = {
    "policy": "sampled freely by the model",
    "guided": "sampled with guided decoding",
    "demonstration": "demonstrated by the environment",
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a before/after comparison."""

    title: str
    before: ShownFigure
    after: ShownFigure

    @property
    def change(self) -> str:
        return change_text(self.before, self.after)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A titled set of rows, e.g. completion by family."""

    title: str
    rows: tuple[Row, ...]


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """One finished stage."""

    name: str
    duration: str
    completion: ShownFigure
    figures: tuple[tuple[str, str], ...]
    """Further scalars of the stage, as title and text."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One metric over the steps of one stage."""

    stage: str
    name: str
    points: tuple[tuple[float, float], ...]
    """(step, value), steps ascending."""


class SourceShare(msgspec.Struct, frozen=True, kw_only=True):
    """One source of training trajectories."""

    name: str
    title: str
    count: int
    share: float


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One task as played before and after."""

    prompt: str
    family: str
    before: Trajectory
    after: Trajectory


class ReportData(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the page; empty parts are left out of it."""

    name: str
    when: str
    duration: str
    headline: tuple[Row, ...]
    counts: tuple[tuple[str, str, str], ...]
    unseen: tuple[Row, ...]
    groups: tuple[Group, ...]
    stages: tuple[StageRow, ...]
    series: tuple[Series, ...]
    bands: tuple[BandHistory, ...]
    """Measured difficulty of the training tasks."""
    sources: tuple[SourceShare, ...]
    taught: tuple[tuple[str, int], ...]
    """Families of the trajectories that `sources` count, and how many of each; empty where a stage did not say."""
    correlation: tuple[float | None, float | None]
    """Reward–completion correlation before and after."""
    splits: tuple[tuple[str, int, str], ...]
    """Evaluated split, tasks, hash."""
    spread: str
    example: Example | None
    provenance: tuple[tuple[str, str], ...]
    recipe: str
    warnings: tuple[str, ...]
    summary: dict[str, Any]


def report_data(folder: Path) -> ReportData:
    """Reads a run folder; `StoreError` if it is not one. Works without ``summary.json`` (nothing evaluated yet)."""
    if not (folder / EVENTS).exists():
        raise StoreError(f"{folder}: expected a run folder with {EVENTS}, found none")
    events, problems = read_events(folder / EVENTS)
    summary = read_summary(folder / SUMMARY) if (folder / SUMMARY).exists() else {}
    before, after = summary.get("before") or {}, summary.get("after") or {}
    start = next((event for event in events if event["event"] == "run_started"), {})
    recipe = (folder / RECIPE).read_text(encoding="utf-8", errors="replace") if (folder / RECIPE).exists() else ""
    series, bad_lines = read_series(folder / METRICS)
    seconds = sum(result.seconds for result in finished_stages(events).values())
    return ReportData(
        name=str(start.get("name", folder.name)),
        when=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(start.get("time", 0))),
        duration=duration_text(seconds),
        headline=_rows(before, after),
        counts=_counts(before, after),
        unseen=_unseen(summary, before, after),
        groups=tuple(_groups(before, after)),
        stages=tuple(_stages(events, summary)),
        series=series,
        bands=band_histories(events, finished_stages(events)),
        sources=_sources(events),
        taught=tuple(sorted(_kept(events, "families").items())),
        correlation=(before.get("reward_completion_correlation"), after.get("reward_completion_correlation")),
        splits=_splits(before, after),
        spread=_spread(after),
        example=_example(folder, events),
        provenance=_provenance(start, events),
        recipe=recipe,
        warnings=(*problems, *bad_lines),
        summary=summary,
    )


def _rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Row, ...]:
    rows = (Row(title=t, before=figure(before, k, u), after=figure(after, k, u)) for k, t, u in HEADLINES)
    return tuple(row for row in rows if row.before.value is not None or row.after.value is not None)


def _counts(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    if not before and not after:
        return ()
    lines = [
        (title, _text(before.get(key)), _text(after.get(key)))
        for key, title in (("episodes", "Episodes"), ("unscored", "Not scored"), ("errored", "Errored"))
    ]
    failures = [figure(metrics, "parse_failures").count or "–" for metrics in (before, after)]
    lines.append(("Ended by unparsable text", failures[0], failures[1]))
    reasons = dict.fromkeys([*(before.get("terminations") or {}), *(after.get("terminations") or {})])
    for reason in reasons:
        both = [(metrics.get("terminations") or {}).get(reason, 0) for metrics in (before, after)]
        lines.append((f"Ended: {reason.replace('_', ' ')}", str(both[0]), str(both[1])))
    return tuple(lines)


def _unseen(summary: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Row, ...]:
    """Figures on ``test_unseen``: from the stages named so, or else from the metrics' own part for that split."""
    stages = [s for s in summary.get("stages") or [] if str(s.get("name", "")).endswith(UNSEEN_SUFFIX)]
    if stages:
        first = (stages[0].get("metrics") or {}) if len(stages) > 1 else {}
        return _rows(first, stages[-1].get("metrics") or {})
    parts = [(metrics.get("by_split") or {}).get("test_unseen") or {} for metrics in (before, after)]
    return _rows(parts[0], parts[1])


def _groups(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Group]:
    for key, title in (("by_family", "Completion by family"), ("by_difficulty", "Completion by difficulty")):
        old, new = before.get(key) or {}, after.get(key) or {}
        rows = tuple(
            Row(
                title=name.replace("_", " "),
                before=figure(old.get(name), "completion_rate"),
                after=figure(new.get(name), "completion_rate"),
            )
            for name in dict.fromkeys([*old, *new])
        )
        if rows:
            yield Group(title=title, rows=rows)


def _stages(events: list[dict[str, Any]], summary: Mapping[str, Any]) -> Iterator[StageRow]:
    measured = {stage.get("name"): stage.get("metrics") for stage in summary.get("stages") or []}
    for name, result in finished_stages(events).items():
        scalars = {key: value for key, value in result.metrics.items() if isinstance(value, int | float | str)}
        yield StageRow(
            name=name,
            duration=duration_text(result.seconds),
            completion=figure(measured.get(name), "completion_rate"),
            figures=tuple((key.replace("_", " "), _text(value)) for key, value in scalars.items()),
        )


def _sources(events: list[dict[str, Any]]) -> tuple[SourceShare, ...]:
    """Shares of the trajectories taught, by source."""
    counts = _kept(events, "sources")
    total = sum(counts.values())
    order = [name for name in SOURCE_TITLES if name in counts] + [name for name in counts if name not in SOURCE_TITLES]
    return tuple(
        SourceShare(name=name, title=SOURCE_TITLES.get(name, name), count=counts[name], share=counts[name] / total)
        for name in order
        if total
    )


def _kept(events: list[dict[str, Any]], by: str) -> dict[str, int]:
    """The stages' own counts ``{by: {name: count}}``, added up."""
    counts: dict[str, int] = defaultdict(int)
    for result in finished_stages(events).values():
        for name, count in (result.metrics.get(by) or {}).items():
            counts[str(name)] += int(count)
    return counts


def _splits(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[tuple[str, int, str], ...]:
    splits = {**(before.get("splits") or {}), **(after.get("splits") or {})}
    return tuple((name, int(split["size"]), str(split["hash"])) for name, split in splits.items())


def _spread(after: Mapping[str, Any]) -> str:
    spread = after.get("spread")
    if not spread:
        return ""
    rates = ", ".join(f"{100 * rate:.1f} %" for rate in spread["completion_rates"])
    return f"{spread['repeats']} runs of the same {spread['tasks']} tasks: {rates}"


def _provenance(start: Mapping[str, Any], events: list[dict[str, Any]]) -> tuple[tuple[str, str], ...]:
    shown = (
        ("Run", start.get("run_id")),
        ("Config hash", start.get("config_hash")),
        ("Seed", start.get("seed")),
        ("Attempts", max((int(event.get("attempt", 1)) for event in events), default=1)),
        ("DeedRL", start.get("deedrl")),
        ("Python", start.get("python")),
        ("Machine", f"{start.get('platform', '–')}, {start.get('processors', '–')} processors"),
    )
    return tuple((title, _text(value)) for title, value in shown)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------- metrics over steps


def read_series(path: Path) -> tuple[tuple[Series, ...], tuple[str, ...]]:
    """Series from ``metrics.jsonl`` by stage and metric; a step written again after a resume counts once.

    Lines that are not metrics are skipped and named in the second part.
    """
    table: dict[tuple[str, str], dict[float, float]] = defaultdict(dict)
    problems: list[str] = []
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], start=1):
        try:
            record = msgspec.json.decode(line)
            stage, step = str(record["stage"]), float(record["step"])
            metrics = record.get("metrics") or {k: v for k, v in record.items() if k not in {"stage", "step", "time"}}
            named = list(metrics.items())
        except (
            msgspec.DecodeError,
            UnicodeDecodeError,
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            RecursionError,
        ) as error:
            problems.append(f"{path}, line {number}: skipped, not a metrics record: {error}")
            continue
        for name, value in named:
            if isinstance(value, int | float) and not isinstance(value, bool):
                table[stage, str(name).removeprefix(f"{stage}/")][step] = float(value)
    series = (
        Series(stage=stage, name=name, points=tuple(sorted(points.items()))) for (stage, name), points in table.items()
    )
    return tuple(one for one in series if len(one.points) > 1), tuple(problems)


# ---------------------------------------------------------------- an example


def _example(folder: Path, events: list[dict[str, Any]]) -> Example | None:
    """The first task that failed in the first evaluation and was solved in the last one, if both were stored."""
    stored = {path.stem: path for path in sorted((folder / "trajectories").glob("*.jsonl"))}
    names = [name for name in finished_stages(events) if name in stored]
    evaluations = [name for name in names if name.startswith(("baseline", "eval"))]
    if len(evaluations) < 2:
        return None
    failed = {
        trajectory.task_id: trajectory
        for trajectory in _trajectories(stored[evaluations[0]])
        if trajectory.solved is False and trajectory.steps
    }
    for trajectory in _trajectories(stored[evaluations[-1]]):
        before = failed.get(trajectory.task_id)
        if before is not None and trajectory.solved and trajectory.steps:
            return Example(
                prompt=trajectory.steps[0].observation, family=trajectory.family, before=before, after=trajectory
            )
    return None


def _trajectories(path: Path) -> Iterator[Trajectory]:
    with open(path, "rb") as lines:
        for line in lines:
            try:
                yield msgspec.json.decode(line, type=Trajectory)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue  # the store reports bad lines; the page only needs one good pair
