from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from deedrl.errors import StoreError
from deedrl.reports.tables import ShownFigure, change_text, figure, print_before_after, read_summary

METRICS = {
    "completion_rate": {"value": 0.5, "numerator": 5, "denominator": 10, "low": 0.25, "high": 0.75},
    "mean_steps": {"value": 2.5, "numerator": 25, "denominator": 10, "low": None, "high": None},
    "episodes": 10,
    "unscored": 1,
    "errored": 2,
}


def printed(before: object, after: object, width: int = 80) -> str:
    stream = io.StringIO()
    print_before_after({"before": before, "after": after}, Console(file=stream, width=width))
    return stream.getvalue()


def test_values_intervals_changes_and_counts_are_printed() -> None:
    after = {**METRICS, "completion_rate": {**METRICS["completion_rate"], "value": 0.9}}  # type: ignore[dict-item]
    text = printed(METRICS, after)
    assert "50.0 % (25.0–75.0)" in text
    assert "+40.0 points" in text
    assert "±0.00" in text
    assert [line.split() for line in text.splitlines() if "Errored" in line] == [["Errored", "2", "2"]]


def test_no_line_of_the_table_is_wrapped_on_80_columns() -> None:
    wide = {"value": 1.0, "numerator": 9, "denominator": 9, "low": 1.0, "high": 1.0}
    keys = ("completion_rate", "mean_steps", "tool_call_accuracy", "format_compliance")
    text = printed(METRICS, dict.fromkeys(keys, wide))
    assert sum("(100.0–100.0)" in line for line in text.splitlines()) == 3


def test_what_was_not_measured_is_a_dash() -> None:
    assert "–" in printed(None, METRICS)
    assert figure(None, "completion_rate").text == "–"
    assert change_text(ShownFigure(), ShownFigure(value=1.0)) == "–"


def test_counts_belong_to_shares_only() -> None:
    assert figure(METRICS, "completion_rate").count == "5 of 10"
    assert figure(METRICS, "mean_steps", "number").count == ""


def test_a_missing_summary_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="at least one finished evaluation"):
        read_summary(tmp_path / "summary.json")


@pytest.mark.parametrize(
    "content", ['{"before": 5}', '{"stages": 3}', '{"after": {"by_family": [1]}}', '{"before": {"spread": 1}}']
)
def test_a_summary_of_another_shape_says_what_to_do(tmp_path: Path, content: str) -> None:
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(StoreError, match=r"not the summary of a run: .*run the recipe again"):
        read_summary(tmp_path / "summary.json")
