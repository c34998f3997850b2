import json
import os
import sqlite3
import subprocess
import sys

import pytest

LOG_TWICE = """
import sys
from pathlib import Path
from deedrl.tracking.trackio import TrackioSink
for attempt in range(2):  # the second time as a resumed run
    sink = TrackioSink(Path(sys.argv[1]), {"learning_rate": 0.001})
    sink.log({"grpo/reward": 0.25 + attempt, "grpo/kl": None}, step=attempt, stage="grpo")
    sink.table("grpo/samples", [{"id": attempt, "text": "hello"}], step=attempt)
    sink.close()
"""


def test_local_run_reads_back_and_resumes(tmp_path):
    """In a process of its own, because Trackio fixes its folder when it is imported."""
    pytest.importorskip("trackio")
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "db"), "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-c", LOG_TWICE, str(tmp_path / "run-7")], env=environment, check=True)
    (database,) = (tmp_path / "db").glob("deedrl*.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("select run_name, step, metrics from metrics order by id").fetchall()
    assert {name for name, _, _ in rows} == {"run-7"}
    logged = [(step, json.loads(metrics)) for _, step, metrics in rows]
    assert [(step, m["grpo/reward"]) for step, m in logged if "grpo/reward" in m] == [(0, 0.25), (1, 1.25)]
    tables = [m["grpo/samples"] for _, m in logged if "grpo/samples" in m]
    assert len(tables) == 2
    assert "hello" in json.dumps(tables[0])
