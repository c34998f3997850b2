"""Samples to micro-batches: every action token once, at the position that predicts it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deedrl.training import packing
from deedrl.training.packing import pack, shared_prefix_length


@pytest.fixture(autouse=True)
def _even_one_token_is_shared(monkeypatch):
    monkeypatch.setattr(packing, "SHORTEST_SHARED", 1)


def context_of(batch, slot):
    """All tokens up to and including the one at a slot."""
    prefix, width = batch.prefix_ids.tolist(), batch.shared_ids.shape[1]
    if slot < batch.shared_ids.numel():
        assert slot % width < batch.shared_lengths[slot // width], "padding predicts nothing"
        return (*prefix, *batch.shared_ids[slot // width, : slot % width + 1].tolist())
    row, column = divmod(slot - batch.shared_ids.numel(), batch.ids.shape[1])
    assert column < batch.lengths[row], "padding predicts nothing"
    shared = batch.shared_ids[batch.shared_of[row], : batch.shared_before[row]] if batch.shared_before[row] else []
    return (*prefix, *map(int, shared), *batch.ids[row, : column + 1].tolist())


def unpacked(batches):
    """(sample's weight, everything before the token, token, its fields) of every action token, as plain values."""
    return sorted(
        (
            batch.weights[batch.sample_of[n]].item(),
            context_of(batch, int(batch.slots[m])),
            int(batch.targets[m]),
            batch.logprobs[n].item(),
            batch.advantages[n].item(),
        )
        for batch in batches
        for n, m in enumerate(batch.predictions)
    )


def expected(samples):
    return sorted(
        (s.weight, s.ids[:i], s.ids[i], s.logprobs[i], s.advantages[i] if s.advantages else 0.0)
        for s in samples
        for i, action in enumerate(s.action_mask)
        if action
    )


parts = st.lists(st.integers(0, 2), min_size=1, max_size=4)
rows = st.lists(st.tuples(parts, parts, parts, parts), min_size=1, max_size=7)


@given(rows=rows, micro_batch_tokens=st.integers(1, 40))
@settings(deadline=None)
def test_every_action_token_is_predicted_from_what_precedes_it_whatever_the_cut(kit, rows, micro_batch_tokens):
    samples = [
        kit.sample(
            f"e{i}", *row, weight=float(i), advantage=i / 2, logprobs=tuple(-float(i) for part in row for _ in part)
        )
        for i, row in enumerate(rows)
    ]
    batches = pack(samples, micro_batch_tokens=micro_batch_tokens)
    assert unpacked(batches) == expected(samples)
    for batch in batches:
        assert batch.ids.numel() + batch.shared_ids.numel() <= micro_batch_tokens or len(batch.ids) == 1
        assert len(set(zip(batch.slots.tolist(), batch.targets.tolist(), strict=True))) == len(batch.targets)


@given(rows=rows)
@settings(deadline=None)
def test_sharing_never_computes_more_tokens_than_plain_rows(kit, rows):
    samples = [kit.sample(f"e{i}", *row) for i, row in enumerate(rows)]
    batch = kit.one_batch(samples)
    length = batch.prefix_ids.numel()
    assert batch.tokens <= length + sum(len(sample.ids) - length for sample in samples)


def test_B12_first_response_token_is_predicted_from_the_last_prompt_token(kit):
    """Prompt of 3, response of 2: positions 2 and 3 of the logits."""
    batch = kit.one_batch([kit.sample("e", [5, 6, 7], [8, 9])])
    positions = batch.slots + batch.prefix_ids.numel()
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
    # What follows the prefix has nothing in common; the last token of a row predicts nothing.
    assert batch.tokens == 9 + sum(len(sample.ids) - 9 - 1 for sample in samples)


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


def test_action_at_the_very_start_has_nothing_that_predicts_it_and_is_an_error(kit):
    with pytest.raises(ValueError, match="sample e begins with an action"):
        pack([kit.sample("e", [], [3, 4])], micro_batch_tokens=99)


def shared_of(batch):
    return sorted(tuple(row[:n].tolist()) for row, n in zip(batch.shared_ids, batch.shared_lengths, strict=True))


def test_siblings_share_one_prompt_and_rows_without_siblings_hold_theirs(kit):
    head, first, second, lone = [1, 2, 3, 4, 5], [10, 11, 12], [20, 21, 22, 23], [30, 31]
    samples = [kit.sample(f"a{i}", [*head, *first], [40 + i, 9, 9]) for i in range(3)]
    samples += [kit.sample(f"b{i}", [*head, *second], [50 + i, 9]) for i in range(2)]
    samples += [kit.sample("c", [*head, *lone], [60, 61])]
    batch = kit.one_batch(samples)
    assert shared_of(batch) == [tuple(first), tuple(second)]
    assert sorted(batch.shared_before.tolist()) == [0, 3, 3, 3, 4, 4]
    assert batch.tokens == 5 + 3 + 4 + 3 * 2 + 2 * 1 + 3


def test_a_first_action_in_common_is_computed_once_and_predicted_once(kit):
    prompt, action, observation = [1, 2, 3], [4, 5, 6], [7, 8]
    samples = [kit.sample(f"e{i}", prompt, action, observation, [10 + i, 20 + i]) for i in range(3)]
    batch = kit.one_batch(samples)
    assert shared_of(batch) == [(3, *action, *observation)]
    assert batch.ids.tolist() == [[12], [11], [10]]
    assert batch.action_tokens == 3 * (3 + 2)
    assert len(batch.targets) == 3 + 3 * 2


def test_a_row_that_would_shorten_what_others_share_stays_out_and_joins_others_like_it(kit):
    prompt, action = [1, 2, 3, 4], [5, 5, 5, 5, 5, 5]
    samples = [kit.sample(f"same{i}", [9, *prompt], [*action, 10 + i, 11]) for i in range(3)]
    samples += [kit.sample(f"other{i}", [9, *prompt], [20 + i, 21, 22]) for i in range(2)]
    samples += [kit.sample("task", [9, 8, 8], [8, 8])]
    assert shared_of(kit.one_batch(samples)) == [tuple(prompt), (*prompt, *action)]


def test_a_row_that_shortens_little_is_taken_in(kit):
    prompt, action = [1, 2, 3, 4], [5, 6, 7, 8]
    samples = [kit.sample(f"same{i}", [9, *prompt], [*action, 10 + i, 11]) for i in range(2)]
    samples += [kit.sample("near", [9, *prompt], [*action[:3], 20, 21]), kit.sample("task", [9, 8, 8], [8, 8])]
    assert shared_of(kit.one_batch(samples)) == [(*prompt, *action[:3])]


def test_samples_that_are_a_beginning_of_another_or_identical_need_no_row(kit):
    long = kit.sample("long", [1, 2], [3, 4], [5], [6, 7])
    samples = [long, kit.sample("again", [1, 2], [3, 4], [5], [6, 7]), kit.sample("short", [1, 2], [3, 4])]
    samples.append(kit.sample("ends otherwise", [1, 2], [3, 4], [5], [6, 8]))
    batch = kit.one_batch(samples)
    assert (batch.tokens, len(batch.ids), batch.action_tokens, len(batch.targets)) == (6, 1, 4 + 4 + 2 + 4, 5)
    assert unpacked([batch]) == expected(samples)


def test_little_in_common_is_not_worth_a_level_of_its_own(kit, monkeypatch):
    monkeypatch.setattr(packing, "SHORTEST_SHARED", 4)
    samples = [kit.sample(f"e{i}", [1, 2, 3, 4], [10 + i, 5]) for i in range(3)] + [kit.sample("f", [1, 9], [6])]
    assert kit.one_batch(samples).shared_ids.numel() == 0
    samples = [kit.sample(f"e{i}", [1, 2, 3, 4, 5], [10 + i, 5]) for i in range(3)] + [kit.sample("f", [1, 9], [6])]
    assert shared_of(kit.one_batch(samples)) == [(2, 3, 4, 5)]


def test_siblings_are_cut_into_batches_that_keep_to_the_limit(kit):
    samples = [kit.sample(f"a{i}", [1, 2, 3, 4, 5, 6], [7 + i, 8, 9]) for i in range(6)]
    samples.append(kit.sample("b", [9, 9], [3]))
    batches = pack(samples, micro_batch_tokens=14)
    assert len(batches) > 2
    assert unpacked(batches) == expected(samples)
    assert len({id(batch.prefix_ids) for batch in batches}) == 1


# ------------------------------------------------------------ what a critic needs


@given(rows=rows, micro_batch_tokens=st.integers(1, 40), cuts=st.lists(st.booleans(), min_size=7, max_size=7))
@settings(deadline=None)
def test_values_returns_and_ends_go_with_their_samples_whatever_the_cut(kit, rows, micro_batch_tokens, cuts):
    samples = [
        kit.sample(
            f"e{i}",
            *row,
            cut=cuts[i],
            values=tuple(float(i) for part in row for _ in part),
            returns=tuple(i + 0.5 for part in row for _ in part),
        )
        for i, row in enumerate(rows)
    ]
    batches = pack(samples, micro_batch_tokens=micro_batch_tokens)
    found, ends = [], []
    for batch in batches:
        for n, m in enumerate(batch.predictions):
            place = int(batch.given_as[batch.sample_of[n]])
            context = context_of(batch, int(batch.slots[m]))
            found.append((place, context, batch.values[n].item(), batch.returns[n].item()))
        for slot, row in zip(batch.end_slots, batch.end_of, strict=True):
            ends.append((int(batch.given_as[row]), context_of(batch, int(slot))))
    assert sorted(found) == sorted(
        (i, s.ids[:at], float(i), i + 0.5) for i, s in enumerate(samples) for at, a in enumerate(s.action_mask) if a
    )
    assert sorted(ends) == [(i, s.ids) for i, s in enumerate(samples) if s.cut and any(s.action_mask)]


def test_samples_keep_their_place_even_where_some_have_nothing_to_learn(kit):
    samples = [kit.sample("none", [5, 6]), kit.sample("a", [5], [6]), kit.sample("b", [5], [7, 8])]
    batch = kit.one_batch(samples)
    assert sorted(batch.given_as.tolist()) == [1, 2]
