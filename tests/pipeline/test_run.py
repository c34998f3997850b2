from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deedrl.errors import ConfigError, StoreError
from deedrl.pipeline.recipe import Recipe, recipe_from
from deedrl.pipeline.run import EVENTS, Run, append_line, read_events, replace_text

CANARY = "hf_" + "C4n4ryC4n4ryC4n4ryC4n4ry"


def other_seed(recipe: Recipe) -> Recipe:
    return recipe_from({"name": "tiny", "seed": 99, "stages": [{"stage": "baseline"}]})


def test_a_new_run_holds_the_resolved_recipe_and_a_first_event(tmp_path: Path, recipe: Recipe) -> None:
    with Run.open(tmp_path / "run", recipe) as run:
        assert run.attempt == 1
        assert not run.resumed
    assert "learning_rate: 0.0001" in (tmp_path / "run" / "recipe.yaml").read_text()
    events, problems = read_events(tmp_path / "run" / EVENTS)
    assert [event["event"] for event in events] == ["run_started"]
    assert events[0]["config_hash"] == run.config_hash
    assert problems == []


def test_a_finished_stage_is_known_after_resuming(tmp_path: Path, recipe: Recipe) -> None:
    with Run.open(tmp_path / "run", recipe) as run:
        run.start_stage("baseline")
        run.finish_stage("baseline", 1.5, {"completion": 0.25})
        run.start_stage("sft")
    with Run.open(tmp_path / "run", recipe) as again:
        assert again.attempt == 2
        assert again.run_id == run.run_id
        result = again.finished("baseline")
        assert result is not None
        assert (result.seconds, result.metrics) == (1.5, {"completion": 0.25})
        assert again.finished("sft") is None


def test_E10_other_settings_are_refused_with_hashes_and_differences(tmp_path: Path, recipe: Recipe) -> None:
    with Run.open(tmp_path / "run", recipe) as run:
        before = (run.folder / EVENTS).read_bytes()
    with pytest.raises(ConfigError) as caught:
        Run.open(tmp_path / "run", other_seed(recipe))
    message = str(caught.value)
    assert run.config_hash[:12] in message
    assert "seed: 3 (int) → 99 (int)" in message
    assert (tmp_path / "run" / EVENTS).read_bytes() == before


def test_E10_a_folder_with_other_things_is_refused(tmp_path: Path, recipe: Recipe) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"found thesis\.txt"):
        Run.open(tmp_path, recipe)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path, recipe: Recipe) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigError, match="got a file"):
        Run.open(tmp_path / "run", recipe)


def test_two_processes_cannot_write_one_run(tmp_path: Path, recipe: Recipe) -> None:
    with Run.open(tmp_path / "run", recipe), pytest.raises(ConfigError, match="another process is writing"):
        Run.open(tmp_path / "run", recipe)
    Run.open(tmp_path / "run", recipe).close()


def test_a_refused_folder_is_not_left_locked(tmp_path: Path, recipe: Recipe) -> None:
    Run.open(tmp_path / "run", recipe).close()
    with pytest.raises(ConfigError, match="other settings"):
        Run.open(tmp_path / "run", other_seed(recipe))
    Run.open(tmp_path / "run", recipe).close()


def test_E01_a_torn_last_event_is_removed_and_reported(tmp_path: Path, recipe: Recipe) -> None:
    with Run.open(tmp_path / "run", recipe) as run:
        run.finish_stage("baseline", 1.0, {})
    with open(tmp_path / "run" / EVENTS, "a") as file:
        file.write('{"event": "stage_finished", "sta')
    with Run.open(tmp_path / "run", recipe) as again:
        assert any("line 3: half-written" in warning for warning in again.warnings)
        assert again.finished("baseline") is not None
    lines = (tmp_path / "run" / EVENTS).read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["run_started", "stage_finished", "run_resumed"]


def test_a_whole_last_event_without_its_newline_is_kept(tmp_path: Path, recipe: Recipe) -> None:
    with Run.open(tmp_path / "run", recipe) as run:
        run.finish_stage("baseline", 1.0, {})
    path = tmp_path / "run" / EVENTS
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    with Run.open(tmp_path / "run", recipe) as again:
        assert again.finished("baseline") is not None
        assert again.warnings == []


def test_a_bad_line_in_the_middle_is_named_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / EVENTS
    path.write_bytes(b'{"event": "a"}\n\xff\xfe\n[1]\n{"event": "b"}\n')
    events, problems = read_events(path)
    assert [event["event"] for event in events] == ["a", "b"]
    assert ["line 2" in problems[0], "line 3" in problems[1]] == [True, True]


@pytest.mark.parametrize(
    "line", ['{"event":"stage_finished","stage":"sft"}', '{"event":"note","attempt":"x"}', "[" * 5000, "5"]
)
def test_an_event_of_another_shape_is_named_and_skipped(tmp_path: Path, recipe: Recipe, line: str) -> None:
    with Run.open(tmp_path / "run", recipe) as run:
        run.finish_stage("baseline", 1.0, {})
    with (tmp_path / "run" / "events.jsonl").open("a") as file:
        file.write(line + "\n")
    with Run.open(tmp_path / "run", recipe) as again:
        assert again.finished("baseline") is not None
        assert again.finished("sft") is None
        assert ["line 3: skipped, not an event" in text for text in again.warnings] == [True]


def test_a_run_whose_first_event_is_unreadable_is_not_started_over(tmp_path: Path, recipe: Recipe) -> None:
    with Run.open(tmp_path / "run", recipe) as run:
        run.finish_stage("baseline", 1.0, {})
    path = tmp_path / "run" / "events.jsonl"
    damaged = b"\x00" + path.read_bytes()[1:]
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match=r"expected the event 'run_started'.*line 1.*put the file back"):
        Run.open(tmp_path / "run", recipe)
    assert path.read_bytes() == damaged


def test_results_whose_events_are_gone_are_not_started_over(tmp_path: Path, recipe: Recipe) -> None:
    with Run.open(tmp_path / "run", recipe) as run:
        (run.trajectories / "baseline.jsonl").touch()
    (tmp_path / "run" / EVENTS).write_bytes(b"")
    with pytest.raises(ConfigError, match=r"expected an empty folder or a run .*found trajectories"):
        Run.open(tmp_path / "run", recipe)


def test_a_run_folder_removed_while_running_is_said_and_not_made_again(tmp_path: Path, recipe: Recipe) -> None:
    with Run.open(tmp_path / "run", recipe) as run:
        shutil.rmtree(run.folder)
        with pytest.raises(StoreError, match="removed or moved while the run was going on"):
            run.finish_stage("baseline", 1.0, {})
        assert not run.folder.exists()


def test_killed_before_the_first_event_starts_anew(tmp_path: Path, recipe: Recipe) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("half")
    with Run.open(tmp_path / "run", recipe) as run:
        assert run.attempt == 1


def test_kill_9_loses_no_reported_stage_and_frees_the_lock(tmp_path: Path, recipe: Recipe) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from deedrl.pipeline.recipe import recipe_from\nfrom deedrl.pipeline.run import Run\n"
        "data = {'name': 'tiny', 'seed': 3, 'stages': [{'stage': 'baseline'}]}\n"
        "run = Run.open(Path(sys.argv[1]), recipe_from(data))\n"
        "run.finish_stage('baseline', 1.0, {'completion': 0.5})\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    folder = tmp_path / "run"
    ended = subprocess.run([sys.executable, "-c", code, str(folder)], check=False)
    assert ended.returncode == -signal.SIGKILL
    with Run.open(folder, recipe_from({"name": "tiny", "seed": 3, "stages": [{"stage": "baseline"}]})) as run:
        result = run.finished("baseline")
        assert result is not None
        assert result.metrics == {"completion": 0.5}


def test_a_torn_checkpoint_is_an_event_and_told(tmp_path: Path, recipe: Recipe) -> None:
    told: list[str] = []
    with Run.open(tmp_path / "run", recipe) as run:
        (run.folder / "checkpoints" / "sft" / "step-00000001").mkdir(parents=True)
        assert run.checkpoints("sft", told.append).latest() is None
    assert "torn" in told[0]
    assert read_events(tmp_path / "run" / EVENTS)[0][-1]["event"] == "warning"


def test_H14_secrets_reach_no_file_of_the_run(tmp_path: Path) -> None:
    data = {"name": "tiny", "stages": [{"stage": "baseline"}], "model": f"https://user:{CANARY}@host/model"}
    with Run.open(tmp_path / "run", recipe_from(data)) as run:
        run.record("note", text=f"token {CANARY}")
        run.finish_stage("baseline", 1.0, {"note": CANARY})
        run.write_json("summary.json", {"note": CANARY})
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) >= 3
    assert [path.name for path in files if CANARY in path.read_text()] == []
    Run.open(tmp_path / "run", recipe_from(data)).close()


def test_E06_half_a_surrogate_pair_in_an_error_text_is_replaced(tmp_path: Path, recipe: Recipe) -> None:
    with Run.open(tmp_path / "run", recipe) as run:
        run.record("warning", text="no file \udcff.txt")
        run.write_json("summary.json", {"note": "\ud800", "nothing": None})
        run.record("warning", text="the next one")
    events = [json.loads(line) for line in (tmp_path / "run" / EVENTS).read_text().splitlines()]
    assert [event.get("text") for event in events][1:] == ["no file ?.txt", "the next one"]
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == {"note": "?", "nothing": None}


def test_E12_a_full_disk_stops_at_once_and_keeps_earlier_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / EVENTS
    for number in range(3):
        append_line(path, f'{{"event": "{number}"}}')

    real_write = os.write

    def half_write(descriptor: int, data: bytes) -> int:
        if len(data) <= 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(descriptor, data[:5])

    monkeypatch.setattr(os, "write", half_write)
    with pytest.raises(StoreError, match="earlier lines are intact"):
        append_line(path, '{"event": 4}')
    monkeypatch.undo()
    assert len(path.read_text().splitlines()) == 3
    append_line(path, '{"event": "4"}')
    assert len(read_events(path)[0]) == 4


def test_E12_a_failed_rewrite_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    replace_text(path, "old")

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(StoreError, match="No space left"):
        replace_text(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]
