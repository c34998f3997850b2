import math
import subprocess
import sys

import pytest

from deedrl.tracking import open_tracker

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def read_back(folder):
    events = accumulator.EventAccumulator(str(folder / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    return events


def values(events, tag):
    return [(event.step, event.tensor_proto.float_val[0]) for event in events.Tensors(tag)]


def test_scalars_read_back_by_tensorboard(tmp_path):
    with open_tracker(["tensorboard"], tmp_path, config={}) as tracker:
        for step in range(3):
            tracker.log({"reward": step / 4, "kl": None}, step=step, stage="grpo")
        tracker.log({"loss": math.nan}, step=3, stage="grpo")
    events = read_back(tmp_path)
    assert values(events, "grpo/reward") == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert math.isnan(values(events, "grpo/loss")[0][1])
    assert "grpo/kl" not in events.Tags()["tensors"]


def test_everything_logged_is_on_disk_before_close(tmp_path):
    tracker = open_tracker(["tensorboard"], tmp_path, config={})
    tracker.log({"reward": 0.5}, step=7, stage="grpo")
    assert values(read_back(tmp_path), "grpo/reward") == [(7, 0.5)]
    tracker.close()


def test_H11_tables_are_markdown_with_markup_escaped(tmp_path):
    with open_tracker(["tensorboard"], tmp_path, config={}) as tracker:
        tracker.table("grpo/samples", [{"id": 1, "text": "<script>|a\nb"}], step=2)
    (event,) = read_back(tmp_path).Tensors("grpo/samples")
    assert event.tensor_proto.string_val[0].decode() == (
        "| id | text |\n| --- | --- |\n| 1 | &lt;script>&#124;a<br>b |"
    )


def test_H14_config_is_redacted(tmp_path):
    with open_tracker(["tensorboard"], tmp_path, config={"api_key": "canary", "learning_rate": 1e-3}):
        pass
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert b"learning_rate" in file.read_bytes()
    assert b"canary" not in file.read_bytes()


def test_needs_no_torch(tmp_path):
    code = (
        "import sys; from deedrl.tracking import open_tracker\n"
        "open_tracker(['tensorboard', 'jsonl', 'console'], sys.argv[1], config={}).close()\n"
        "assert not {'torch', 'transformers', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
