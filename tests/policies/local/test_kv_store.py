"""How much the store of keys and values holds, and that nothing is lost when it grows."""

from __future__ import annotations

import pytest
import torch

from deedrl.memory import resident_gb
from deedrl.policies.local.engine import Engine
from deedrl.policies.local.kv_store import FIRST_ROOM, FIRST_ROWS, SLOT_QUANTUM, KVStore


def shape(store):
    """Rows and reserved slots; all blocks have as many rows, and at least as many slots."""
    shapes = {(block.shape[0], block.shape[2]) for block in (*store.keys, *store.values)}
    assert len(shapes) == 1
    rows, slots = shapes.pop()
    assert rows == store.held_rows
    assert slots >= store.slots
    return rows, store.slots


def test_it_grows_as_asked_and_never_beyond_its_rows(kit):
    store = KVStore(kit.load().model, rows=FIRST_ROWS + 9)
    store.reserve(1, slots=5)
    assert shape(store) == (FIRST_ROWS, SLOT_QUANTUM)
    store.reserve(2, slots=SLOT_QUANTUM)
    assert shape(store) == (FIRST_ROWS, SLOT_QUANTUM)
    store.reserve(FIRST_ROWS + 1)
    assert shape(store) == (FIRST_ROWS + 9, SLOT_QUANTUM)
    store.reserve(1, slots=SLOT_QUANTUM + 1)
    assert shape(store) == (FIRST_ROWS + 9, 2 * SLOT_QUANTUM)


def test_it_may_have_fewer_rows_than_the_first_growth(kit):
    store = KVStore(kit.load().model, rows=3)
    store.reserve(1, slots=1)
    assert shape(store) == (3, SLOT_QUANTUM)


def test_what_is_stored_stays_where_it_is(kit):
    store = KVStore(kit.load().model, rows=2 * FIRST_ROWS)
    store.reserve(FIRST_ROWS, slots=1)
    written = [block[:, :, :SLOT_QUANTUM].normal_() for block in (*store.keys, *store.values)]
    before = [block.clone() for block in written]
    for rows, slots in ((FIRST_ROWS, SLOT_QUANTUM + 1), (FIRST_ROWS + 1, FIRST_ROOM), (1, FIRST_ROOM + 1)):
        store.reserve(rows, slots=slots)
        for old, new in zip(before, (*store.keys, *store.values), strict=True):
            assert torch.equal(new[:FIRST_ROWS, :, :SLOT_QUANTUM], old)
            assert not new[FIRST_ROWS:].any()
            assert not new[:, :, SLOT_QUANTUM:].any()


@pytest.mark.skipif(resident_gb() is None, reason="the system does not say what is resident")
def test_what_is_not_written_takes_no_memory(kit):
    """Rows and slots for a gigabyte of keys and values."""
    model = kit.load().model
    store = KVStore(model, rows=4000)
    wanted = 1e9 / (2 * store.layers * store.kv_heads * store.size * store.dtype.itemsize)
    before = resident_gb()
    store.reserve(4000, slots=int(wanted / 4000))
    store.keys[0][:, :, 0] = 1.0
    assert resident_gb() - before < 0.1


def test_an_engine_for_many_sequences_holds_rows_for_those_it_has(kit):
    engine = Engine(kit.load().model, stop_ids=[-1], max_rows=500)
    turns = [kit.turn(f"t{i}", kit.ids(i, 9), prefix=[]) for i in range(FIRST_ROWS + 1)]
    kit.play(engine, turns)
    assert engine._store.held_rows == FIRST_ROWS + 1
    for turn in turns:
        engine.release(turn.key)
    engine.reset()
    kit.play(engine, [kit.turn("alone", kit.ids(1, 9))])
    assert engine._store.held_rows == FIRST_ROWS
