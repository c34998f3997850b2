from __future__ import annotations

import json

import pytest

from deedrl.errors import StoreError
from deedrl.evaluation import StageSummary, Summary, compute_metrics, read_summary, write_summary


@pytest.fixture
def example(run, errored):
    before = compute_metrics([run(False, 3, task_id="a"), run(False, 3, task_id="b"), errored("c")])
    after = compute_metrics([run(True, 2, task_id="a"), run(True, 2, task_id="b"), run(None, 2, task_id="c")])
    return Summary(before=before, after=after, stages=(StageSummary(name="sft", seconds=1.5, metrics=after),))


def test_summary_keeps_its_public_contract(tmp_path, example):
    write_summary(tmp_path / "summary.json", example)
    read = json.loads((tmp_path / "summary.json").read_text())
    assert set(read) == {"before", "after", "stages"}
    assert {"name", "seconds", "metrics"} == set(read["stages"][0])
    for metrics in (read["before"], read["after"], read["stages"][0]["metrics"]):
        for name in ("completion_rate", "mean_steps", "tool_call_accuracy", "format_compliance"):
            assert set(metrics[name]) == {"value", "numerator", "denominator", "low", "high"}
        assert {"episodes", "unscored", "errored"} <= set(metrics)


def test_summary_counts_by_hand(tmp_path, example):
    write_summary(tmp_path / "summary.json", example)
    read = json.loads((tmp_path / "summary.json").read_text())
    assert [read["before"][key] for key in ("episodes", "unscored", "errored")] == [3, 0, 1]
    assert [read["after"][key] for key in ("episodes", "unscored", "errored")] == [3, 1, 0]
    assert read["after"]["mean_steps"]["numerator"] == 6
    assert read["before"]["completion_rate"]["value"] == 0.0


def test_summary_reads_back_equal(tmp_path, example):
    write_summary(tmp_path / "run" / "summary.json", example)
    assert read_summary(tmp_path / "run" / "summary.json") == example


def test_E07_summary_is_strict_json_when_nothing_was_measured(tmp_path):
    nothing = compute_metrics([])
    write_summary(tmp_path / "summary.json", Summary(before=nothing, after=None))
    text = (tmp_path / "summary.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["before"]["completion_rate"]["value"] is None


def test_E12_failed_write_keeps_the_earlier_summary(tmp_path, example, monkeypatch):
    path = tmp_path / "summary.json"
    write_summary(path, example)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        write_summary(path, Summary(before=None, after=None))
    assert read_summary(path) == example
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize("text", [None, "{", '{"before": 3, "after": null}'])
def test_unreadable_summary_is_a_clear_error(tmp_path, text):
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    with pytest.raises(StoreError, match="expected a run's summary"):
        read_summary(tmp_path / "summary.json")
