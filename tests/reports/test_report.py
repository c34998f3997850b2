from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from deedrl.errors import StoreError
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.run import Run
from deedrl.reports.data import read_series, report_data
from deedrl.reports.report import embeddable_json, percent, render_report, write_report

HOSTILE = "</script><script>x=1</script><img src=x onerror=alert(1)>"


class Elements(HTMLParser):
    """Collects start tags with their attributes, and the text of the embedded summary."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def page(finished_run: Path) -> str:
    return write_report(finished_run).read_text()


def test_H11_model_text_is_shown_as_text(page: str) -> None:
    elements = Elements(page)
    scripts = [attributes for tag, attributes in elements.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "summary"}]
    assert [tag for tag, _ in elements.tags if tag == "img"] == []
    assert elements.text.count(HOSTILE) == 2


def test_H11_embedded_json_cannot_close_its_element() -> None:
    embedded = str(embeddable_json({"text": HOSTILE + "\u2028<!--"}))
    assert "<" not in embedded
    assert json.loads(embedded)["text"] == HOSTILE + "\u2028<!--"


def test_the_embedded_summary_is_the_run_s_own(finished_run: Path, page: str) -> None:
    found = re.search(r'<script type="application/json" id="summary">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    assert json.loads(found[1]) == json.loads((finished_run / "summary.json").read_text())


def test_the_page_is_self_contained(page: str) -> None:
    links = [
        value
        for _, attributes in Elements(page).tags
        for name, value in attributes.items()
        if name in {"src", "href", "xlink:href"} and value and not value.startswith("#")
    ]
    assert links == []
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page


def test_the_page_shows_before_after_with_intervals_and_counts(page: str) -> None:
    text = " ".join(Elements(page).text.split())
    assert "0.8 % → 95.0 %".replace(" → ", "→") in text
    assert "91.1 – 98.9" in text
    assert "114 of 120" in text
    assert "Ended by unparsable text" in text
    assert "0.947" in text


def test_test_unseen_is_reported_apart(finished_run: Path) -> None:
    data = report_data(finished_run)
    assert data.unseen[0].after.count == "37 of 60"
    assert data.headline[0].after.count == "114 of 120"


def test_test_unseen_is_also_found_among_the_splits_of_the_metrics(finished_run: Path) -> None:
    summary = json.loads((finished_run / "summary.json").read_text())
    group = summary["stages"][1]["metrics"]
    summary["stages"] = []
    summary["after"]["by_split"] = {"test_unseen": group}
    (finished_run / "summary.json").write_text(json.dumps(summary))
    unseen = report_data(finished_run).unseen
    assert unseen[0].after.count == "0 of 60"
    assert unseen[0].before.value is None


def test_shares_of_data_sources_are_never_hidden(finished_run: Path) -> None:
    sources = report_data(finished_run).sources
    assert [(source.name, source.count) for source in sources] == [("policy", 2), ("guided", 41), ("demonstration", 88)]
    assert sum(source.share for source in sources) == pytest.approx(1.0)
    assert report_data(finished_run).taught == (("several_orders", 101), ("window", 30))
    page = render_report(report_data(finished_run))
    assert "demonstrated by the environment: 88 (67.2 %)" in page
    assert 'several orders <span class="number">101</span> · window' in page


def test_a_task_is_shown_before_and_after(finished_run: Path) -> None:
    example = report_data(finished_run).example
    assert example is not None
    assert (example.before.solved, example.after.solved) == (False, True)


def test_a_run_without_evaluations_still_has_a_page(tmp_path: Path) -> None:
    data = {"name": "early", "stages": [{"stage": "baseline"}]}
    with Run.open(tmp_path / "run", recipe_from(data)):
        pass
    page = write_report(tmp_path / "run").read_text()
    assert "Nothing has been evaluated yet." in page


def test_absent_figures_are_a_dash_not_zero(finished_run: Path) -> None:
    summary = json.loads((finished_run / "summary.json").read_text())
    summary["after"] = None
    (finished_run / "summary.json").write_text(json.dumps(summary))
    row = report_data(finished_run).headline[0]
    assert (row.after.text, row.change) == ("–", "–")
    write_report(finished_run)


def test_a_folder_that_is_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expected a run folder"):
        report_data(tmp_path)


def test_a_broken_summary_is_an_error(finished_run: Path) -> None:
    (finished_run / "summary.json").write_text("{")
    with pytest.raises(StoreError, match="cannot be read"):
        report_data(finished_run)


def line(stage: str, step: int, **metrics: Any) -> str:
    return json.dumps({"time": 0, "stage": stage, "step": step, "metrics": metrics})


def test_a_step_logged_again_after_a_resume_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join([line("sft", 1, **{"sft/loss": 3.0}), line("sft", 2, **{"sft/loss": 2.0})]) + "\n")
    with open(path, "a") as file:
        print(line("sft", 2, **{"sft/loss": 1.5}), line("sft", 3, **{"sft/loss": 1.0}), sep="\n", file=file)
    series, problems = read_series(path)
    assert series[0].points == ((1, 3.0), (2, 1.5), (3, 1.0))
    assert (series[0].stage, series[0].name) == ("sft", "loss")
    assert problems == ()


def test_bad_metric_lines_are_named_and_absent_values_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join([line("a", 1, x=None), "{torn", line("a", 2, x=1), line("a", 3, x=2)]))
    series, problems = read_series(path)
    assert series[0].points == ((2, 1), (3, 2))
    assert "line 2" in problems[0]


@pytest.mark.parametrize("bad", ['{"stage": "a", "step": 1, "metrics": 5}', '{"x": ' + "[" * 100_000])
def test_metric_lines_of_another_shape_are_named(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join([bad, line("a", 1, x=1), line("a", 2, x=2)]))
    series, problems = read_series(path)
    assert series[0].points == ((1, 1), (2, 2))
    assert "line 1" in problems[0]


@pytest.mark.parametrize(("value", "text"), [(None, "0.00%"), (0.5, "50.00%"), (1.7, "100.00%"), (-1, "0.00%")])
def test_bar_lengths_stay_on_the_page(value: float | None, text: str) -> None:
    assert percent(value) == text


def test_curves_follow_the_colours_of_the_page(page: str) -> None:
    assert page.count("<svg") == 6
    assert "var(--accent)" in page
    assert "#070809" not in page
