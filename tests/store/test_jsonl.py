import json
import logging
import multiprocessing
import os
import stat
import threading

import msgspec
import pytest

from deedrl.errors import StoreError
from deedrl.store import TrajectoryStore, jsonl
from deedrl.store.codec import encode


def ids(store):
    return [trajectory.episode_id for trajectory in store]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trajectories" / "grpo.jsonl"


@pytest.fixture
def store(path):
    return TrajectoryStore(path)


# ---------------------------------------------------------------- plain use


def test_append_then_iterate(store, make):
    first, second = make("e1"), make("e2", reward=None)
    assert store.append(first)
    assert store.append(second)
    assert list(store) == [first, second]


def test_a_missing_file_reads_as_empty(store):
    assert list(store) == []
    assert store.episode_ids() == set()
    assert store.scan().good == 0


def test_opening_creates_nothing(store, path):
    assert not path.parent.exists()


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(StoreError, match="expected a file"):
        TrajectoryStore(tmp_path)


def test_iterating_is_lazy(store, make):
    store.append_many(make(f"e{i}") for i in range(3))
    iterator = iter(store)
    assert next(iterator).episode_id == "e0"
    assert next(iterator).episode_id == "e1"


def test_iterating_sees_the_file_as_it_was_at_the_start(store, make):
    store.append(make("e1"))
    seen = []
    for trajectory in store:
        seen.append(trajectory.episode_id)
        store.append(make(f"{trajectory.episode_id}+"))
    assert seen == ["e1"]
    assert ids(store) == ["e1", "e1+"]


def test_records_with_nul_characters(store, make):
    store.append(make("e1", observation="a\x00b"))
    store.append(make("e2"))
    assert [t.steps[0].observation for t in store] == ["a\x00b", "Order 7?"]


def test_E06_records_after_a_lone_surrogate_are_there(store, make):
    store.append(make("e1", observation="\ud800abc"))
    store.append(make("e2"))
    assert ids(store) == ["e1", "e2"]


# ---------------------------------------------------------------- E01, E03: bad lines


def test_E01_half_written_last_line(store, path, make):
    store.append_many(make(f"e{i}") for i in range(3))
    with path.open("ab") as file:
        file.write(encode(make("e3"))[:100])
    report = store.scan()
    assert (report.good, report.torn, report.quarantined) == (3, 1, 0)
    assert str(report.bad[0]).startswith(f"{path}:4: torn: ")


def test_a_line_nested_too_deep_is_a_bad_line(store, path, make):
    store.append(make("one"))
    with path.open("ab") as file:
        file.write(b'{"other": ' + b"[" * 100_000 + b"\n")
    store.append(make("two"))
    assert ids(store) == ["one", "two"]
    assert (store.scan().good, store.scan().torn) == (2, 1)


def test_E01_appending_after_a_torn_tail_does_not_glue(path, make):
    TrajectoryStore(path).append(make("e1"))
    with path.open("ab") as file:
        file.write(encode(make("e2"))[:100])
    before = path.read_bytes()
    resumed = TrajectoryStore(path)
    assert resumed.append(make("e2"))
    assert ids(resumed) == ["e1", "e2"]
    assert path.read_bytes().startswith(before)
    assert resumed.scan().torn == 1


def test_E01_a_tail_of_zeros_after_a_power_cut(store, path, make):
    store.append(make("e1"))
    with path.open("ab") as file:
        file.write(b"\x00" * 4096)
    store.append(make("e2"))
    assert ids(store) == ["e1", "e2"]
    assert store.scan().torn == 1


def test_a_whole_last_line_without_newline_counts(path, make):
    path.parent.mkdir()
    path.write_bytes(encode(make("e1")) + encode(make("e2")).rstrip(b"\n"))
    store = TrajectoryStore(path)
    assert ids(store) == ["e1", "e2"]
    assert not store.append(make("e2", reward=1.0))
    assert [t.reward for t in store] == [0.5, 1.0]
    assert store.scan().duplicates == 1


def test_E03_wrong_types_are_quarantined_and_counted(store, path, make):
    store.append(make("e0"))
    bad = b'{"episode_id":"e1","reward":"high"}\n["a", "bare", "list"]\n'
    with path.open("ab") as file:
        file.write(bad)
    store.append(make("e2"))
    before = path.read_bytes()
    report = store.scan()
    assert (report.good, report.quarantined, report.torn) == (2, 2, 0)
    assert [line.line for line in report.bad] == [2, 3]
    assert ids(store) == ["e0", "e2"]
    assert path.read_bytes() == before


def test_E03_bad_lines_are_copied_to_a_sibling(store, path):
    path.parent.mkdir()
    path.write_bytes(b'{"episode_id":"e1","reward":"high"}\n{"cut')
    store.scan()
    store.scan()
    copies = [json.loads(line) for line in store.quarantine_path.read_text().splitlines()]
    assert [(copy["line"], copy["kind"], copy["text"]) for copy in copies] == [
        (1, "quarantined", '{"episode_id":"e1","reward":"high"}'),
        (2, "torn", '{"cut'),
    ]
    assert store.quarantine_path.parent == path.parent


def test_E03_a_clean_file_has_no_quarantine(store, make):
    store.append(make())
    store.scan()
    assert not store.quarantine_path.exists()


def test_E03_iterating_warns_with_file_and_line(store, path, caplog):
    path.parent.mkdir()
    path.write_bytes(b"[]\n")
    with caplog.at_level(logging.WARNING, "deedrl.store"):
        assert list(store) == []
    assert f"{path}:1: quarantined" in caplog.text


def test_blank_lines_are_no_records(store, path, make):
    path.parent.mkdir()
    path.write_bytes(b"\n" + encode(make("e1")) + b"  \n")
    report = store.scan()
    assert (report.good, report.torn, report.quarantined) == (1, 0, 0)


def test_many_bad_lines_are_counted_but_not_all_listed(store, path):
    path.parent.mkdir()
    path.write_bytes(b"[]\n" * 250)
    report = store.scan()
    assert (report.quarantined, len(report.bad)) == (250, 100)


def test_newer_schema_is_named_with_file_and_line(store, path, make):
    store.append(make("e1"))
    with path.open("ab") as file:
        file.write(encode(make("e2", schema_version=2)))
    with pytest.raises(StoreError, match=r"grpo\.jsonl:2: .*upgrade"):
        list(store)


def test_newer_schema_of_a_known_episode_is_named_too(store, path, make):
    store.append(make("e1"))
    with path.open("ab") as file:
        file.write(b"[]\n" + encode(make("e1", schema_version=2)))
    with pytest.raises(StoreError, match=r"grpo\.jsonl:3: .*upgrade"):
        store.scan()
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["grpo.jsonl", "grpo.jsonl.lock"]


# ---------------------------------------------------------------- E04: parallel writers


def _append_five(path, writer, make):
    store = TrajectoryStore(path)
    for i in range(5):
        store.append(make(f"{writer}-{i}", observation=f"<{writer}-{i}>" * 60_000))


def test_E04_six_processes_append_to_one_file(path, make):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append_five, args=(path, writer, make)) for writer in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 6
    lines = path.read_bytes().splitlines()
    assert len(lines) == 30
    assert min(map(len, lines)) > 300_000
    assert {json.loads(line)["episode_id"] for line in lines} == {f"{w}-{i}" for w in range(6) for i in range(5)}


def test_E04_threads_share_one_store(store, make):
    def work(name):
        for i in range(20):
            store.append(make(f"{name}-{i}"))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids(store))) == 80


def test_E04_a_record_of_another_writer_is_known(path, make):
    mine, theirs = TrajectoryStore(path), TrajectoryStore(path)
    assert mine.append(make("e1"))
    assert not theirs.append(make("e1"))
    assert theirs.append(make("e2"))
    assert not mine.append(make("e2"))


# ---------------------------------------------------------------- E08: duplicates


def test_E08_resumed_twice_counts_each_episode_once(path, make):
    planned = [f"task-{task}/{sibling}" for task in range(2) for sibling in range(4)]
    for start in (planned[:2], planned, planned):
        store = TrajectoryStore(path)
        for episode_id in start:
            store.append(make(episode_id))
    assert sorted(ids(TrajectoryStore(path))) == sorted(planned)
    report = TrajectoryStore(path).scan()
    assert (report.good, report.duplicates) == (8, 10)


def test_E08_append_tells_that_an_id_was_there(path, make):
    assert TrajectoryStore(path).append(make("e1"))
    assert not TrajectoryStore(path).append(make("e1"))


def test_E08_append_many_counts_new_ids(store, make):
    store.append(make("e1"))
    assert store.append_many([make("e1"), make("e2"), make("e2"), make("e3")]) == 2


def test_E08_the_last_complete_record_wins(store, make):
    store.append(make("e1", reward=0.25))
    store.append(make("e2"))
    store.append(make("e1", reward=0.75))
    assert [(t.episode_id, t.reward) for t in store] == [("e2", 0.5), ("e1", 0.75)]


def test_E08_a_broken_later_copy_does_not_win(store, path, make):
    store.append(make("e1", reward=0.25))
    with path.open("ab") as file:
        file.write(b'{"episode_id":"e1","task_id":"t1","steps":"none"}\n')
        file.write(encode(make("e1", reward=0.75))[:-20])
    assert [(t.episode_id, t.reward) for t in store] == [("e1", 0.25)]
    report = store.scan()
    assert (report.good, report.duplicates, report.quarantined, report.torn) == (1, 0, 1, 1)


@pytest.mark.parametrize("episode_id", ['quo"te', "back\\slash", "новый", "a/b", ""])
def test_E08_ids_of_any_letters_are_counted_once(path, make, episode_id):
    store = TrajectoryStore(path)
    store.append(make(episode_id, reward=0.25))
    store.append(make(episode_id, reward=0.75))
    assert [(t.episode_id, t.reward) for t in TrajectoryStore(path)] == [(episode_id, 0.75)]


def test_E08_lines_laid_out_by_another_writer_are_counted_once(path, make):
    TrajectoryStore(path).append(make("e1", reward=0.25))
    line = json.loads(encode(make("e1", reward=0.75)))
    other = json.dumps(dict(reversed(line.items())), indent=None).encode()
    twice = b'{"episode_id":"e0",' + encode(make("e1", reward=0.5))[1:]
    with path.open("ab") as file:
        file.write(twice + other + b"\n")
    assert [(t.episode_id, t.reward) for t in TrajectoryStore(path)] == [("e1", 0.75)]


def test_E08_an_episode_id_inside_a_record_is_not_its_own(path, make):
    step = make().steps[0]
    action = msgspec.structs.replace(step.action, parameters={"episode_id": "e2"})
    store = TrajectoryStore(path)
    store.append_many([make("e1", steps=(msgspec.structs.replace(step, action=action),)), make("e2")])
    assert ids(TrajectoryStore(path)) == ["e1", "e2"]


def test_reading_does_not_change_what_appending_knows(path, make):
    TrajectoryStore(path).append(make("e1"))
    with path.open("ab") as file:
        file.write(encode(make("e2"))[:100])
    store = TrajectoryStore(path)
    assert ids(store) == ["e1"]
    assert not store.append(make("e1"))
    assert store.append(make("e2"))


def test_E14_a_new_file_gets_its_name_synced_too(path, make, monkeypatch):
    synced = []
    monkeypatch.setattr(jsonl, "sync_folder", synced.append)
    store = TrajectoryStore(path, sync_interval_s=0.0)
    store.append(make("e1"))
    store.append(make("e2"))
    assert synced == [path.parent]
    path.unlink()
    store.append(make("e3"))
    assert synced == [path.parent] * 2


def test_E08_an_episode_whose_only_line_is_broken_is_not_finished(store, path):
    path.parent.mkdir()
    path.write_bytes(b'{"episode_id":"e1","task_id":"t1","steps":"none"}\n')
    assert store.episode_ids() == set()


# ---------------------------------------------------------------- E10: other runs


@pytest.mark.parametrize(("run_id", "config_hash", "named"), [("r2", "c1", "run id"), ("r1", "c2", "config hash")])
def test_E10_opening_a_file_of_other_settings_is_refused(path, make, run_id, config_hash, named):
    TrajectoryStore(path, run_id="r1", config_hash="c1").append(make())
    with pytest.raises(StoreError, match=f"expected {named} .* got .*choose another output folder"):
        TrajectoryStore(path, run_id=run_id, config_hash=config_hash)


def test_E10_resuming_with_the_same_settings_is_fine(path, make):
    TrajectoryStore(path, run_id="r1", config_hash="c1").append(make("e1"))
    assert TrajectoryStore(path, run_id="r1", config_hash="c1").append(make("e2"))


def test_E10_a_trajectory_of_another_run_is_refused(path, make):
    store = TrajectoryStore(path, run_id="r2")
    with pytest.raises(StoreError, match="episode 'e1'"):
        store.append(make("e1"))
    assert not path.exists()


def test_E10_a_record_that_names_no_run_gets_the_stores(path, make):
    store = TrajectoryStore(path, run_id="r1", config_hash="c1")
    nameless = make()
    nameless = msgspec.structs.replace(nameless, provenance=msgspec.structs.replace(nameless.provenance, run_id=""))
    store.append(nameless)
    assert [t.provenance.run_id for t in store] == ["r1"]


def test_E10_other_run_that_slipped_in_while_open(path, make):
    store = TrajectoryStore(path, config_hash="c1")
    store.append(make("e1"))
    other = make("e2")
    provenance = msgspec.structs.replace(other.provenance, config_hash="c2")
    TrajectoryStore(path).append(msgspec.structs.replace(other, provenance=provenance))
    with pytest.raises(StoreError, match="config hash"):
        store.append(make("e3"))


# ---------------------------------------------------------------- E07, durability policy


def test_E07_a_refused_record_leaves_the_file_as_it_was(store, path, make):
    store.append(make("e1"))
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"breakdown\.total"):
        store.append_many([make("e2"), make("e3", reward=float("nan"))])
    assert path.read_bytes() == before


@pytest.mark.parametrize(("interval_s", "syncs"), [(0.0, 3), (3600.0, 1), (None, 0)])
def test_E14_sync_policy(path, make, monkeypatch, interval_s, syncs):
    files = []
    monkeypatch.setattr(os, "fsync", lambda fd: files.append(stat.S_ISREG(os.fstat(fd).st_mode)))
    store = TrajectoryStore(path, sync_interval_s=interval_s)
    for i in range(3):
        store.append(make(f"e{i}"))
    assert files.count(True) == syncs


def test_a_file_replaced_by_a_shorter_one_is_read_anew(store, path, make):
    store.append_many(make(f"e{i}") for i in range(3))
    path.write_bytes(encode(make("n1")))
    assert ids(store) == ["n1"]
    assert store.append(make("e1"))
