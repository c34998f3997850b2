import json
import struct
import time

import pytest

from deedrl.tracking import open_tracker
from deedrl.tracking.wandb import WandbSink, default_mode


@pytest.fixture(autouse=True)
def no_account(monkeypatch, tmp_path):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_PROJECT", "WANDB_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def test_offline_without_an_account():
    assert default_mode() == "offline"


@pytest.mark.parametrize(("name", "value"), [("WANDB_MODE", "online"), ("WANDB_API_KEY", "x")])
def test_the_environment_decides_first(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert default_mode() is None


def test_a_login_counts_as_an_account(tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine api.wandb.ai\n  login user\n  password secret\n")
    netrc.chmod(0o600)
    assert default_mode() is None


def test_an_unreadable_login_file_means_offline(tmp_path):
    (tmp_path / "netrc").write_text("this is no netrc")
    assert default_mode() == "offline"


def chunks(log):
    """Payloads of a wandb file: a seven-byte header, then LevelDB's log format in blocks of 32 KiB."""
    position, payload = 7, b""
    while position + 7 <= len(log):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = struct.unpack_from("<xxxxHB", log, position)
        payload += log[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or last part
            yield payload
            payload = b""


def records(folder):
    """All records of the only offline run in `folder`; waits for wandb's own process, which writes after `finish`."""
    proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        parsed = [proto.Record.FromString(payload) for payload in chunks(path.read_bytes())]
        if parsed and parsed[-1].WhichOneof("record_type") == "exit":
            return parsed
        time.sleep(0.02)
    raise AssertionError(f"{path} never became complete")


def of_kind(folder, kind):
    return [getattr(record, kind) for record in records(folder) if record.WhichOneof("record_type") == kind]


def history(folder):
    rows = [
        {item.key or "/".join(item.nested_key): item.value_json for item in r.item} for r in of_kind(folder, "history")
    ]
    return [{key: json.loads(value) for key, value in row.items() if not key.startswith("_")} for row in rows]


def test_offline_run_reads_back(tmp_path):
    pytest.importorskip("wandb")
    sink = WandbSink(tmp_path, {"learning_rate": 0.001})
    sink.log({"sft/loss": 1.5, "sft/kl": None}, step=0, stage="sft")
    sink.log({"sft/loss": 0.5}, step=1, stage="sft")
    sink.log({"grpo/reward": 0.25}, step=0, stage="grpo")
    sink.table("grpo/samples", [{"id": 1, "text": "hello", "reward": None}], step=0)
    sink.close()
    first, second, third, table = history(tmp_path)
    assert first == {"sft/loss": 1.5, "sft/step": 0}
    assert second == {"sft/loss": 0.5, "sft/step": 1}
    assert third == {"grpo/reward": 0.25, "grpo/step": 0}
    assert table["grpo/samples/nrows"] == 1
    assert [(m.name or m.glob_name, m.step_metric) for m in of_kind(tmp_path, "metric")] == [
        ("sft/step", ""),
        ("sft/*", "sft/step"),
        ("grpo/step", ""),
        ("grpo/*", "grpo/step"),
    ]
    assert (tmp_path / "wandb-run-id").read_text() in str(next(tmp_path.glob("wandb/offline-run-*")))


def test_a_resumed_folder_keeps_its_run_id(tmp_path):
    pytest.importorskip("wandb")
    WandbSink(tmp_path, {}).close()
    first = (tmp_path / "wandb-run-id").read_text()
    WandbSink(tmp_path, {}).close()
    assert (tmp_path / "wandb-run-id").read_text() == first


def test_H14_no_key_of_config_command_line_or_environment_is_written(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setattr("sys.argv", ["deedrl", "run", "--secret=canary-0123"])
    monkeypatch.setenv("SOME_API_KEY", "canary-4567")
    with open_tracker(["wandb"], tmp_path, config={"api_key": "canary-89", "learning_rate": 0.001}) as tracker:
        assert tracker.sinks == ("wandb",)
    assert any(b"learning_rate" in record.SerializeToString() for record in records(tmp_path))
    found = [path for path in tmp_path.rglob("*") if path.is_file() and b"canary" in path.read_bytes()]
    assert found == []
