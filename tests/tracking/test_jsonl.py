import json
import math
import resource

import pytest

from deedrl.tracking.jsonl import JsonlSink, read_metrics


def lines(folder):
    def refuse(word):
        raise AssertionError(word)

    return [json.loads(line, parse_constant=refuse) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_line_is_there_when_log_returns(tmp_path):
    JsonlSink(tmp_path).log({"sft/loss": 1.5, "sft/kl": None}, step=2, stage="sft")
    (line,) = lines(tmp_path)
    assert line.pop("time") > 1.7e9
    assert line == {"stage": "sft", "step": 2, "metrics": {"sft/loss": 1.5, "sft/kl": None}, "nan_fields": []}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_E07_nan_becomes_null_and_is_named(tmp_path, value):
    JsonlSink(tmp_path).log({"s/a": value, "s/b": 1}, step=0, stage="s")
    (line,) = lines(tmp_path)
    assert line["metrics"] == {"s/a": None, "s/b": 1}
    assert line["nan_fields"] == ["s/a"]


def test_E12_a_line_that_does_not_fit_is_taken_back_and_told(tmp_path):
    """A file-size limit stands in for a full disk: the kernel takes what fits and says so, which is no error yet."""
    sink = JsonlSink(tmp_path)
    sink.log({"s/a": 1}, step=0, stage="s")
    before = (tmp_path / "metrics.jsonl").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            sink.log({"s/a": 2}, step=1, stage="s")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_E01_a_torn_tail_is_not_glued_to_the_next_line(tmp_path):
    JsonlSink(tmp_path).log({"s/a": 1}, step=0, stage="s")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"time": 17')
    JsonlSink(tmp_path).log({"s/a": 2}, step=1, stage="s")
    assert read_metrics(tmp_path) == {"s/a": {0: 1, 1: 2}}


def test_E08_a_step_logged_again_after_a_resume_counts_once(tmp_path):
    sink = JsonlSink(tmp_path)
    for step, value in ((0, 0.1), (1, 0.2), (1, 0.3), (2, None)):
        sink.log({"s/a": value}, step=step, stage="s")
    assert read_metrics(tmp_path) == {"s/a": {0: 0.1, 1: 0.3, 2: None}}


def test_a_run_without_metrics_reads_as_empty(tmp_path):
    assert read_metrics(tmp_path) == {}


def test_tables_have_a_file_of_their_own(tmp_path):
    JsonlSink(tmp_path).table("grpo/samples", [{"id": 1, "text": "a\nb"}], step=3)
    line = json.loads((tmp_path / "tables.jsonl").read_text())
    assert (line["table"], line["step"], line["rows"]) == ("grpo/samples", 3, [{"id": 1, "text": "a\nb"}])
