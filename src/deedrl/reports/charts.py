"""Learning curves as inline SVG that follows the page's colours, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from deedrl.reports.data import Series

PANELS_PER_STAGE = 4
# Drawn in these stand-in colours, which become CSS variables in the page.
_INK, _QUIET, _LINE, _SOFT = "#010203", "#040506", "#070809", "#0a0b0c"
_VARIABLES = {_INK: "var(--ink)", _QUIET: "var(--quiet)", _LINE: "var(--accent)", _SOFT: "var(--rule)"}
_PREFERRED = ("completion", "success", "reward", "loss", "kl", "format", "steps", "entropy", "norm", "rate")


def curve_panels(series: Sequence[Series]) -> list[tuple[str, list[str]]]:
    """For each stage its SVGs, the most telling metrics first."""
    panels = []
    for stage in dict.fromkeys(one.stage for one in series):
        chosen = sorted((one for one in series if one.stage == stage), key=_interest)[:PANELS_PER_STAGE]
        panels.append((stage, [_draw(one) for one in chosen]))
    return panels


def _interest(one: Series) -> tuple[bool, int, str]:
    """The figures people look for first come first; a curve that never moves comes last."""
    rank = next((i for i, word in enumerate(_PREFERRED) if word in one.name), len(_PREFERRED))
    flat = len({value for _, value in one.points}) == 1
    return flat, rank, one.name


def _draw(one: Series) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(3.2, 2.1), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    steps, values = zip(*one.points, strict=True)
    axes.plot(steps, values, color=_LINE, linewidth=1.8, solid_capstyle="round")
    axes.plot(steps[-1:], values[-1:], color=_LINE, marker="o", markersize=4)
    axes.set_title(
        one.name.replace("_", " ").replace("/", " · "), loc="left", fontsize=10, color=_INK, parse_math=False
    )
    axes.tick_params(colors=_QUIET, labelsize=8.5, length=0)
    axes.grid(axis="y", color=_SOFT, linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_SOFT)
    axes.margins(x=0.03, y=0.12)
    axes.patch.set_alpha(0)
    figure.patch.set_alpha(0)
    return _inlined(figure)


def _inlined(figure: object) -> str:
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "font.family": "sans-serif", "svg.hashsalt": "deedrl"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})  # type: ignore[attr-defined]
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    for stand_in, variable in _VARIABLES.items():
        svg = svg.replace(stand_in, variable)
    svg = re.sub(r"font: ([\d.]+)px[^;\"]*", r"font-size: \1px", svg)
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)  # its rules would reach the whole page
    opening, rest = svg.split(">", 1)
    # Sized by the page; the view box keeps the proportions.
    return re.sub(r' (?:width|height)="[^"]*"', "", opening) + ">" + rest
