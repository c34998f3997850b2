import logging
import math
import statistics
import time

import numpy
import pytest

from deedrl.errors import ConfigError
from deedrl.tracking import Tracker, open_tracker
from deedrl.tracking.jsonl import read_metrics


def test_names_are_stage_and_metric(list_sink):
    Tracker([list_sink]).log({"reward": 0.5, "steps": 2, "kl": None}, step=3, stage="grpo")
    assert list_sink.logged == [({"grpo/reward": 0.5, "grpo/steps": 2, "grpo/kl": None}, 3, "grpo")]


def test_numpy_scalars_and_bools_become_numbers(list_sink):
    Tracker([list_sink]).log({"a": numpy.float32(0.5), "b": numpy.int64(3), "c": True}, step=0, stage="s")
    metrics = list_sink.logged[0][0]
    assert metrics == {"s/a": 0.5, "s/b": 3, "s/c": 1}
    assert [type(value) for value in metrics.values()] == [float, int, int]


def test_nan_is_passed_on(list_sink):
    Tracker([list_sink]).log({"a": math.nan}, step=0, stage="s")
    assert math.isnan(list_sink.logged[0][0]["s/a"])


def test_what_is_no_number_is_left_out_with_one_warning(list_sink, caplog):
    tracker = Tracker([list_sink])
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            tracker.log({"a": "high", "b": numpy.zeros(2), "c": 1.0}, step=step, stage="s")
    assert [metrics for metrics, _, _ in list_sink.logged] == [{"s/c": 1.0}] * 3
    assert len(caplog.records) == 2


def test_I06_a_failing_sink_is_switched_off_with_one_warning(list_sink, broken_sink, caplog):
    tracker = Tracker([broken_sink, list_sink])
    with caplog.at_level(logging.WARNING):
        for step in range(5):
            tracker.log({"a": 1.0}, step=step, stage="s")
    assert len(broken_sink.logged) == 1
    assert len(list_sink.logged) == 5
    assert tracker.sinks == ("list",)
    assert len(caplog.records) == 1
    assert "'broken' failed and is switched off" in caplog.text


def test_H14_the_warning_holds_no_key(broken_sink, caplog):
    with caplog.at_level(logging.WARNING):
        Tracker([broken_sink]).log({"a": 1.0}, step=0, stage="s")
    assert "no network" in caplog.text
    assert "canary" not in caplog.text


def test_an_interrupt_is_not_swallowed(list_sink):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    list_sink.log = interrupt
    with pytest.raises(KeyboardInterrupt):
        Tracker([list_sink]).log({"a": 1.0}, step=0, stage="s")


def test_leaving_the_block_closes_once(list_sink):
    with Tracker([list_sink]) as tracker:
        pass
    tracker.close()
    assert list_sink.closed == 1


def test_unknown_tracker_suggests_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="got 'wanbd'; did you mean 'wandb'"):
        open_tracker(["console", "wanbd"], tmp_path, config={})


@pytest.mark.parametrize("name", ["wandb", "trackio", "tensorboard"])
def test_a_missing_package_names_the_extra(tmp_path, monkeypatch, name):
    for module in (name, "tensorboard.summary.writer.event_file_writer"):
        monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(ConfigError, match=rf"pip install 'deedrl\[{name}\]'"):
        open_tracker([name], tmp_path, config={})


def test_I06_a_sink_that_cannot_start_is_left_out(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        tracker = open_tracker(["jsonl", "console"], tmp_path / "file", config={})
    assert tracker.sinks == ("console",)
    assert "'jsonl' failed" in caplog.text


def test_a_name_given_twice_opens_one_sink(tmp_path):
    assert open_tracker(["jsonl", "jsonl"], tmp_path, config={}).sinks == ("jsonl",)


def test_I06_tables_are_bounded(list_sink):
    rows = [{"id": index, "text": "x" * 5000} for index in range(64)]
    Tracker([list_sink]).table("grpo/samples", rows, step=1)
    _, few, _ = list_sink.tables[0]
    assert len(few) == 8
    assert [row["id"] for row in few] == sorted({row["id"] for row in few})
    assert few[0]["text"] == "x" * 2000 + "… (3000 more characters)"


def test_I06_cost_of_a_step_stays_flat_over_500_steps(tmp_path):
    rows = [{"id": index, "text": "answer " * 50} for index in range(8)]
    seconds = []
    with open_tracker(["jsonl", "tensorboard"], tmp_path, config={}) as tracker:
        for step in range(500):
            start = time.perf_counter()
            tracker.log({"reward": 0.5, "kl": 0.01}, step=step, stage="grpo")
            tracker.table("grpo/samples", rows, step=step)
            seconds.append(time.perf_counter() - start)
    early, late = statistics.median(seconds[50:150]), statistics.median(seconds[-100:])
    assert late < 3 * early
    assert len(read_metrics(tmp_path)["grpo/kl"]) == 500
