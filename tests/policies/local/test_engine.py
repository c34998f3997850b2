"""Sampled log-probabilities against a plain forward pass, whatever the engine did with rows, caches and prefixes."""

from __future__ import annotations

import pytest
import torch

from deedrl.errors import ModelError
from deedrl.policies.local.engine import Engine

FAMILIES = ["Llama", "Qwen2", "Qwen3", "Mistral", "Gemma"]
NEVER = -1
"""A stop id that no model samples."""


@pytest.fixture(scope="module")
def loaded(kit):
    return kit.load()


@pytest.fixture(scope="module")
def plain(kit):
    return kit.plain()


def engine(loaded, **options):
    return Engine(loaded.model, stop_ids=[options.pop("stop", NEVER)], **options)


def check(kit, plain, turns, tolerance=1e-5, temperature=1.0):
    assert turns
    for turn in turns:
        expected = kit.plain_logprobs(plain, turn.context, turn.tokens, temperature)
        assert turn.logprobs == pytest.approx(expected, abs=tolerance)


# ------------------------------------------------------------ equality with transformers


@pytest.mark.parametrize("shared", [True, False], ids=["prefix", "no_prefix"])
@pytest.mark.parametrize("family", FAMILIES)
def test_three_turns_of_more_sequences_than_rows_equal_a_plain_forward_pass(kit, family, shared):
    ours, plain = engine(kit.load(family), max_rows=2), kit.plain(family)
    prefix = kit.ids(99, 11) if shared else []
    # The last sequence lacks the prefix; lengths differ, so that rows are padded.
    contexts = {f"s{i}": [*(prefix if i < 3 else []), *kit.ids(i, 3 + 4 * i)] for i in range(4)}
    played = []
    for group in (["s0", "s1"], ["s2", "s3"]):
        for round_ in range(3):
            ended = kit.play(
                ours,
                [kit.turn(key, contexts[key], prefix=prefix, max_tokens=4 + round_ + int(key[1])) for key in group],
            )
            played += ended.values()
            for key in group:
                contexts[key] = [*ended[key].context, *ended[key].tokens, *kit.ids(round_, 2 + int(key[1]))]
        for key in group:
            ours.release(key)
    assert len(played) == 12
    check(kit, plain, played)


def test_sequences_that_wait_for_a_row_get_theirs_when_one_is_released(kit, loaded, plain):
    ours = engine(loaded, max_rows=2)
    turns = [kit.turn(f"s{i}", kit.ids(i, 5 + i)) for i in range(5)]
    for turn in turns:
        ours.submit(turn)
    ended = []
    while ours.busy:
        for turn in ours.step():
            ended.append(turn)
            ours.release(turn.key)
    assert {turn.key for turn in ended} == {"s0", "s1", "s2", "s3", "s4"}
    check(kit, plain, ended)


def test_siblings_with_one_context_are_computed_once_and_sampled_apart(kit, loaded, plain, monkeypatch):
    ours = engine(loaded, max_rows=6)
    context, other = kit.ids(1, 12), kit.ids(2, 9)
    lengths = []
    hidden = ours._weights.hidden

    def counting(ids, *rest):
        lengths.append(ids.shape[1])
        return hidden(ids, *rest)

    monkeypatch.setattr(ours._weights, "hidden", counting)
    turns = [kit.turn(f"a{i}", context, prefix=context[:5], seed=i) for i in range(4)]
    ended = kit.play(ours, [*turns, kit.turn("b", other)])
    assert lengths[:2] == [5, 7 + 9]
    assert len({tuple(turn.tokens) for turn in ended.values()}) == 5
    check(kit, plain, ended.values())
    # What the twins were given is as good a cache as a computed one.
    seconds = [kit.turn(k, [*t.context, *t.tokens, *kit.ids(7, 3)], prefix=context[:5]) for k, t in ended.items()]
    check(kit, plain, kit.play(ours, seconds).values())


def test_a_turn_joins_while_others_decode(kit, loaded, plain):
    ours = engine(loaded, max_rows=3)
    ours.submit(kit.turn("early", kit.ids(1, 5), max_tokens=9))
    for _ in range(3):
        ours.step()
    ours.submit(kit.turn("late", kit.ids(2, 7), max_tokens=3))
    ended = []
    steps = 0
    while ours.busy:
        ended += ours.step()
        steps += 1
    assert steps == 6
    assert [turn.key for turn in ended] == ["late", "early"]
    check(kit, plain, ended)


def test_row_moved_into_a_released_one_keeps_its_cache(kit, loaded, plain):
    ours = engine(loaded, max_rows=3)
    first = kit.play(ours, [kit.turn(key, kit.ids(ord(key), 9)) for key in "abc"])
    ours.release("a")
    seconds = [kit.turn(k, [*first[k].context, *first[k].tokens, *kit.ids(7, 3)]) for k in "cb"]
    check(kit, plain, kit.play(ours, seconds).values())


def test_row_of_storage_that_grew_while_sampling_can_be_moved(kit, loaded, plain):
    ours = engine(loaded, max_rows=2)
    first = kit.play(ours, [kit.turn(key, kit.ids(ord(key), 70)) for key in "ab"])
    ours.release("a")
    second = kit.turn("b", [*first["b"].context, *first["b"].tokens, 9])
    check(kit, plain, kit.play(ours, [second]).values())


def test_row_moved_while_others_decode_goes_on_undisturbed(kit, loaded, plain):
    ours = engine(loaded, max_rows=3)
    for key, length in (("a", 1), ("b", 9), ("c", 12)):
        ours.submit(kit.turn(key, kit.ids(ord(key), 4), max_tokens=length))
    ended = {}
    while ours.busy:
        for turn in ours.step():
            ended[turn.key] = turn
            ours.release(turn.key)
    check(kit, plain, ended.values())
    assert [len(ended[key].tokens) for key in "abc"] == [1, 9, 12]


def test_row_waiting_for_a_tool_is_not_touched_by_decoding_of_others(kit, loaded, plain):
    ours = engine(loaded, max_rows=2)
    first = kit.play(ours, [kit.turn("idle", kit.ids(1, 5), max_tokens=2), kit.turn("busy", kit.ids(2, 5))])
    kit.play(ours, [kit.turn("busy", [*first["busy"].context, *first["busy"].tokens, 9], max_tokens=80)])
    second = kit.turn("idle", [*first["idle"].context, *first["idle"].tokens, *kit.ids(3, 4)])
    check(kit, plain, kit.play(ours, [second]).values())


def test_context_that_does_not_extend_the_row_starts_it_again(kit, loaded, plain):
    ours = engine(loaded)
    prefix = kit.ids(5, 6)
    kit.play(ours, [kit.turn("a", [*prefix, *kit.ids(1, 9)], prefix=prefix)])
    second = kit.turn("a", [*prefix, *kit.ids(2, 5)], prefix=prefix)
    check(kit, plain, kit.play(ours, [second]).values())


def test_context_that_leaves_the_shared_prefix_starts_its_row_without_it(kit, loaded, plain):
    ours = engine(loaded)
    prefix = kit.ids(5, 6)
    kit.play(ours, [kit.turn(key, [*prefix, *kit.ids(1, 9)], prefix=prefix) for key in "ab"])
    second = kit.turn("a", kit.ids(2, 12), prefix=kit.ids(2, 6))
    check(kit, plain, kit.play(ours, [second]).values())


def test_context_that_is_nothing_but_the_prefix_is_sampled_too(kit, loaded, plain):
    prefix = kit.ids(5, 6)
    check(kit, plain, kit.play(engine(loaded), [kit.turn("a", prefix, prefix=prefix)]).values())


def test_same_context_again_samples_again(kit, loaded, plain):
    ours = engine(loaded)
    context = kit.ids(1, 7)
    first = kit.play(ours, [kit.turn("a", context, seed=3)])["a"]
    second = kit.play(ours, [kit.turn("a", context, seed=3)])["a"]
    assert second.tokens == first.tokens
    check(kit, plain, [second])


def test_prefill_in_small_portions_gives_the_same(kit, loaded, plain):
    turns = [kit.turn(f"s{i}", kit.ids(i, 20)) for i in range(4)]
    check(kit, plain, kit.play(engine(loaded, prefill_tokens=25), turns).values())


def test_storage_grows_with_long_sequences(kit, loaded, plain):
    turns = [kit.turn("long", kit.ids(1, 130), max_tokens=70), kit.turn("short", kit.ids(2, 3), max_tokens=3)]
    check(kit, plain, kit.play(engine(loaded), turns).values())


def test_bfloat16_agrees_with_transformers_within_its_precision(kit):
    ours, plain = engine(kit.load(dtype="bf16")), kit.plain(dtype="bf16")
    prefix = kit.ids(5, 12)
    turns = [kit.turn(f"s{i}", [*prefix, *kit.ids(i, 6)], prefix=prefix, max_tokens=12) for i in range(4)]
    check(kit, plain, kit.play(ours, turns).values(), tolerance=0.05)


def test_results_in_float32_do_not_depend_on_who_else_is_in_the_batch(kit, loaded):
    def alone_or_not(others):
        mine = kit.turn("mine", kit.ids(0, 9), seed=11, max_tokens=15)
        rest = [kit.turn(f"o{i}", kit.ids(i + 1, 4 + 5 * i), max_tokens=5 + i) for i in range(others)]
        return kit.play(engine(loaded), [*rest[:2], mine, *rest[2:]])["mine"]

    alone, crowded = alone_or_not(0), alone_or_not(5)
    assert alone.tokens == crowded.tokens
    assert alone.logprobs == pytest.approx(crowded.logprobs, abs=1e-5)


def test_equal_seeds_in_different_rows_draw_the_same(kit, loaded):
    ended = kit.play(engine(loaded), [kit.turn(key, kit.ids(0, 5), seed=4, max_tokens=12) for key in "ab"])
    assert ended["a"].tokens == ended["b"].tokens
    assert kit.play(engine(loaded), [kit.turn("c", kit.ids(0, 5), seed=5, max_tokens=12)])["c"].tokens != (
        ended["a"].tokens
    )


@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_B14_logprobs_are_those_of_the_tempered_distribution(kit, loaded, plain, temperature):
    ended = kit.play(engine(loaded), [kit.turn("a", kit.ids(0, 5), temperature=temperature)])
    check(kit, plain, ended.values(), temperature=temperature)


# ------------------------------------------------------------ how turns end


def test_stop_token_ends_the_turn_and_is_part_of_it(kit, loaded):
    free = kit.play(engine(loaded), [kit.turn("a", kit.ids(0, 5), max_tokens=9)])["a"]
    stop = free.tokens[3]
    stopped = kit.play(engine(loaded, stop=stop), [kit.turn("a", kit.ids(0, 5), max_tokens=9)])["a"]
    assert stopped.tokens == free.tokens[: free.tokens.index(stop) + 1]
    assert stopped.finish_reason == "stop"
    assert free.finish_reason == "length"


def test_stop_token_at_the_very_limit_counts_as_stop(kit, loaded):
    free = kit.play(engine(loaded), [kit.turn("a", kit.ids(0, 5), max_tokens=1)])["a"]
    ended = kit.play(engine(loaded, stop=free.tokens[0]), [kit.turn("a", kit.ids(0, 5), max_tokens=1)])["a"]
    assert (ended.finish_reason, len(ended.tokens), len(ended.logprobs)) == ("stop", 1, 1)


def test_abandoned_turn_leaves_the_others_and_its_own_row_usable(kit, loaded, plain):
    ours = engine(loaded)
    gone, stays = kit.turn("gone", kit.ids(0, 5), max_tokens=30), kit.turn("stays", kit.ids(1, 5), max_tokens=8)
    ours.submit(gone)
    ours.submit(stays)
    for _ in range(4):
        ours.step()
    ours.abandon("gone")
    check(kit, plain, kit.play(ours, []).values())
    check(kit, plain, kit.play(ours, [kit.turn("gone", [*kit.ids(0, 5), 9, 9])]).values())


def test_abandoned_waiting_turn_is_never_started(kit, loaded):
    ours = engine(loaded)
    ours.submit(kit.turn("a", kit.ids(0, 5)))
    ours.abandon("a")
    assert not ours.busy


def test_release_of_an_unknown_sequence_is_fine(loaded):
    engine(loaded).release("never seen")


def test_turn_longer_than_the_models_positions_is_refused(kit, loaded):
    with pytest.raises(ModelError, match=r"2040 \+ 9 tokens, the model holds 2048.*lower"):
        engine(loaded).submit(kit.turn("a", kit.ids(0, 2040), max_tokens=9))


# ------------------------------------------------------------ new weights


def test_reset_after_an_update_samples_from_the_new_weights(kit):
    loaded, plain = kit.load(), kit.plain()
    ours = engine(loaded)
    prefix = kit.ids(3, 8)
    first = kit.play(ours, [kit.turn("a", [*prefix, 5], prefix=prefix)])["a"]
    for model in (loaded.model, plain):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.3)
    ours.reset()
    second = kit.turn("a", [*first.context, *first.tokens, 7], prefix=prefix)
    check(kit, plain, kit.play(ours, [second]).values())


def test_reset_while_turns_run_is_refused(kit, loaded):
    ours = engine(loaded)
    ours.submit(kit.turn("a", kit.ids(0, 5)))
    with pytest.raises(RuntimeError, match="wait for the running turns"):
        ours.reset()
    ours.step()
    with pytest.raises(RuntimeError, match="wait for the running turns"):
        ours.reset()


# ------------------------------------------------------------ models that would be computed wrongly


def test_sliding_window_bounds_what_a_turn_may_hold(kit):
    ours = engine(kit.load("Mistral", sliding_window=32))
    with pytest.raises(ModelError, match="the model holds 32"):
        ours.submit(kit.turn("a", kit.ids(0, 30), max_tokens=3))


def test_within_its_sliding_window_a_model_is_computed_rightly(kit):
    ours, plain = engine(kit.load("Mistral", sliding_window=32)), kit.plain("Mistral", sliding_window=32)
    check(kit, plain, kit.play(ours, [kit.turn("a", kit.ids(0, 25), max_tokens=7)]).values())


def test_soft_capped_model_is_refused_instead_of_computed_wrongly(kit):
    with pytest.raises(ModelError, match="softcap"):
        engine(kit.load("Gemma2"))
