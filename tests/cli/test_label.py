"""``deedrl label``: where it listens, what it prints, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deedrl.store.jsonl import TrajectoryStore
from deedrl.types import Action, Completion, Step, Trajectory

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

RECIPE = "name: tiny\nstages:\n  - stage: grpo\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "trajectories").mkdir(parents=True)
    (folder / "recipe.yaml").write_text(RECIPE)
    for name in ("one", "two"):
        step = Step(index=0, observation="Job", completion=Completion(text=name), action=Action())
        TrajectoryStore(folder / "trajectories" / "grpo.jsonl").append(
            Trajectory(episode_id=name, task_id="t", steps=(step,))
        )
    return folder


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What would have been served."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: seen.update(options, app=app))
    return seen


def test_it_listens_on_this_machine_alone_and_needs_no_token(
    run: Path, served: dict[str, Any], command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    from starlette.testclient import TestClient

    assert command("label", run, "--port", 8711) == 0
    assert (served["host"], served["port"]) == ("127.0.0.1", 8711)
    assert "Pairs to label: 1. Open http://127.0.0.1:8711/ " in capsys.readouterr().out
    client = TestClient(served["app"], base_url="http://localhost:8711")
    client.post("/rater", data={"rater": "anna"})
    answers = [
        client.post("/label", data={"choice": "tie", "left": left, "right": right}, follow_redirects=False).status_code
        for left, right in (("one", "two"), ("two", "one"))
    ]
    assert sorted(answers) == [303, 400], "the sides are drawn"
    assert '"choice":"tie"' in (run / "labels.jsonl").read_text()


def test_elsewhere_it_prints_an_address_with_a_token_that_is_needed(
    run: Path, served: dict[str, Any], command: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    from starlette.testclient import TestClient

    assert command("label", run, "--host", "0.0.0.0") == 0
    [address] = [word for word in capsys.readouterr().out.split() if word.startswith("http")]
    client = TestClient(served["app"], base_url="http://192.0.2.1:8710")
    assert client.get("/").status_code == 403
    assert len(address.partition("?token=")[2]) >= 32
    assert client.get("/?" + address.partition("?")[2]).status_code == 200


def test_nothing_to_label_and_no_run_are_said(
    run: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (run / "trajectories" / "grpo.jsonl").unlink()
    assert command("label", run) == 2
    assert "expected two different episodes of one training task" in capsys.readouterr().err
    assert command("label", tmp_path / "nowhere") == 2
    assert "expected a run folder" in capsys.readouterr().err
