"""Samples to micro-batches: every action token once, at the position that predicts it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deedrl.training.packing import pack, shared_prefix_length


def unpacked(batches):
    """(sequence, position of the predicted token, token) of every action token, as plain values."""
    found = []
    for batch in batches:
        for row, column, target in zip(batch.rows, batch.columns, batch.targets, strict=True):
            prompt = batch.prompt_of[row]
            before = [*batch.prefix_ids.tolist(), *batch.prompt_ids[prompt, : batch.prompt_lengths[prompt]].tolist()]
            sequence = (*before, *batch.ids[row, : batch.lengths[row]].tolist())
            found.append((sequence, len(before) + int(column) + 1, int(target)))
    return sorted(found)


def expected(samples):
    return sorted((s.ids, i, s.ids[i]) for s in samples for i, action in enumerate(s.action_mask) if action)


parts = st.lists(st.integers(0, 3), min_size=1, max_size=5)
rows = st.lists(st.tuples(parts, parts, parts, parts), min_size=1, max_size=6)


@given(rows=rows, micro_batch_tokens=st.integers(1, 40))
@settings(deadline=None)
def test_every_action_token_is_predicted_once_whatever_the_cut(kit, rows, micro_batch_tokens):
    samples = [kit.sample(f"e{i}", *row) for i, row in enumerate(rows)]
    batches = pack(samples, micro_batch_tokens=micro_batch_tokens)
    assert unpacked(batches) == expected(samples)
    for batch in batches:
        assert batch.ids.numel() + batch.prompt_ids.numel() <= micro_batch_tokens or len(batch.ids) == 1


def test_B12_first_response_token_is_predicted_from_the_last_prompt_token(kit):
    """Prompt of 3, response of 2: positions 2 and 3 of the logits."""
    batch = kit.one_batch([kit.sample("e", [5, 6, 7], [8, 9])])
    positions = batch.columns + batch.prefix_ids.numel()
    assert positions.tolist() == [2, 3]
    assert batch.targets.tolist() == [8, 9]


def test_shared_prefix_ends_before_the_last_prompt_token_of_any_row(kit):
    """The hidden state at the last prompt token predicts an action, so every row computes its own."""
    samples = [kit.sample("a", [1, 2, 3, 4], [5]), kit.sample("b", [1, 2, 3], [4, 5])]
    assert shared_prefix_length(samples) == 2


def test_shared_prefix_stops_at_the_first_difference(kit):
    samples = [kit.sample("a", [1, 2, 3, 4], [5]), kit.sample("b", [1, 9, 3, 4], [5])]
    assert shared_prefix_length(samples) == 1


def test_prefix_is_stored_once_and_counted_once(kit):
    samples = kit.family(4, prefix=9)
    batch = kit.one_batch(samples)
    assert batch.prefix_ids.tolist() == list(samples[0].ids[:9])
    assert batch.tokens == 9 + sum(len(sample.ids) - 9 for sample in samples)


def test_C03_sample_without_action_tokens_is_left_out(kit):
    samples = [kit.sample("none", [1, 2, 3]), kit.sample("some", [1, 2], [3])]
    [batch] = pack(samples, micro_batch_tokens=99)
    assert batch.lengths.numel() == 1
    assert pack(samples[:1], micro_batch_tokens=99) == []
    assert pack([], micro_batch_tokens=99) == []


def test_per_token_fields_follow_their_tokens(kit):
    sample = kit.sample("e", [1, 2], [3, 4], [5], [6], logprobs=(0.0, 0.0, -1.0, -2.0, 0.0, -3.0), advantage=0.5)
    batch = kit.one_batch([sample])
    assert batch.logprobs.tolist() == [-1.0, -2.0, -3.0]
    assert batch.advantages.tolist() == [0.5] * 3
    assert batch.logprobs.dtype == batch.advantages.dtype == torch.float32


def test_weights_stay_with_their_rows_after_sorting_by_length(kit):
    samples = [kit.sample("long", [1, 2], [3] * 5, weight=0.25), kit.sample("short", [1, 2], [3], weight=0.75)]
    batch = kit.one_batch(samples)
    assert dict(zip(batch.lengths.tolist(), batch.weights.tolist(), strict=True)) == {2: 0.75, 6: 0.25}


def test_action_at_the_very_start_has_nothing_that_predicts_it_and_is_an_error(kit):
    with pytest.raises(ValueError, match="sample e begins with an action"):
        pack([kit.sample("e", [], [3, 4])], micro_batch_tokens=99)


def test_siblings_share_one_prompt_and_rows_without_siblings_hold_theirs(kit):
    head, first, second, lone = kit.ids(1, 5), kit.ids(2, 4), kit.ids(3, 6), kit.ids(4, 3)
    samples = [kit.sample(f"a{i}", [*head, *first], kit.ids(10 + i, 3)) for i in range(3)]
    samples += [kit.sample(f"b{i}", [*head, *second], kit.ids(20 + i, 4)) for i in range(2)]
    samples += [kit.sample("c", [*head, *lone], kit.ids(30, 2))]
    batch = kit.one_batch(samples)
    prompts = [tuple(row[:n].tolist()) for row, n in zip(batch.prompt_ids, batch.prompt_lengths, strict=True)]
    assert sorted(prompts) == sorted([tuple(first[:-1]), tuple(second[:-1]), ()])
    assert batch.tokens == 5 + 3 + 5 + 3 * (1 + 3) + 2 * (1 + 4) + (3 + 2)


def test_siblings_are_cut_into_batches_that_keep_to_the_limit(kit):
    samples = [kit.sample(f"a{i}", [1, 2, 3, 4, 5, 6], [7 + i, 8, 9]) for i in range(6)]
    samples.append(kit.sample("b", [9, 9], [3]))
    batches = pack(samples, micro_batch_tokens=14)
    assert len(batches) > 2
    assert unpacked(batches) == expected(samples)
    assert len({id(batch.prefix_ids) for batch in batches}) == 1
