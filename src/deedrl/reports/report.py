"""Writes ``report.html``: one self-contained page, readable offline, on a phone, by day and by night.

All text comes from runs and models and is shown as text: the template escapes everything, and the embedded JSON holds
no ``<``. The page runs no script.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from deedrl.pages import page_templates
from deedrl.pipeline.run import REPORT, replace_text
from deedrl.reports.data import ReportData, report_data


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Builds the page of the run in `folder`; returns where it was written (default ``report.html`` in there)."""
    path = out or Path(folder) / REPORT
    replace_text(path, render_report(report_data(Path(folder))))
    return path


def render_report(data: ReportData) -> str:
    """The page as HTML."""
    templates = page_templates("deedrl.reports")
    templates.filters["percent"] = percent
    return templates.get_template("report.html.j2").render(
        data=data, panels=_panels(data), embedded=embeddable_json(data.summary)
    )


def _panels(data: ReportData) -> list[tuple[str, list[Any]]]:
    from markupsafe import Markup

    if importlib.util.find_spec("matplotlib") is None:
        return []
    from deedrl.reports.charts import curve_panels

    # Drawn by matplotlib, which escapes the text it is given.
    return [(stage, [Markup(svg) for svg in drawings]) for stage, drawings in curve_panels(data.series)]


def embeddable_json(value: Any) -> Any:
    """JSON that is safe inside a ``script`` element: ``<``, ``>`` and ``&`` are escaped, so no tag can close it."""
    from markupsafe import Markup

    text = json.dumps(value, ensure_ascii=True)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def percent(value: float | None) -> str:
    """A share as CSS length, clamped to 0–100 %; nothing measured is 0."""
    return f"{100 * min(1.0, max(0.0, value or 0.0)):.2f}%"
