"""How much the store of keys and values holds, and that nothing is lost when it grows."""

from __future__ import annotations

import torch

from deedrl.policies.local.engine import Engine
from deedrl.policies.local.kv_store import FIRST_ROWS, SLOT_QUANTUM, KVStore


def shape(store):
    shapes = {(block.shape[0], block.shape[2]) for block in (*store.keys, *store.values)}
    assert len(shapes) == 1
    return shapes.pop()


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
    before = [block.normal_() for block in (*store.keys, *store.values)]
    store.reserve(FIRST_ROWS + 1, slots=SLOT_QUANTUM + 1)
    for old, new in zip(before, (*store.keys, *store.values), strict=True):
        assert torch.equal(new[:FIRST_ROWS, :, :SLOT_QUANTUM], old)
        assert not new[FIRST_ROWS:].any()
        assert not new[:, :, SLOT_QUANTUM:].any()


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
