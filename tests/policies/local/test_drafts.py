"""Guessed tokens save passes and change nothing that is sampled."""

from __future__ import annotations

import pytest

from deedrl.policies.local import drafts, engine
from deedrl.policies.local.drafts import Drafts
from deedrl.policies.local.engine import Engine


@pytest.fixture(scope="module")
def loaded(kit):
    return kit.load()


def new_engine(loaded, **options):
    return Engine(loaded.model, stop_ids=[options.pop("stop", -1)], **options)


# ------------------------------------------------------------ the guesses


def known_from(*sequences, times=2):
    known = Drafts()
    for sequence in sequences:
        for _ in range(times):
            known.learn(sequence)
    return known


def test_what_followed_is_guessed_up_to_the_limit_or_to_what_is_unknown():
    known = known_from([1, 2, 3, 4, 5, 6])
    assert known.guess([9, 1, 2, 3], 2) == [4, 5]
    assert known.guess([1, 2, 3], 8) == [4, 5, 6]
    assert known.guess([1, 2, 3], 0) == []
    assert known.guess([2, 3], 8) == []
    assert known.guess([7, 7, 7], 8) == []


def test_a_loop_is_guessed_only_as_far_as_asked():
    assert known_from([1, 1, 1, 1]).guess([1, 1, 1], 5) == [1] * 5


def test_what_was_seen_twice_in_a_row_is_guessed_and_three_times_after_something_else():
    known = Drafts()
    for followed_by, guessed in [(4, []), (4, [4]), (5, []), (4, []), (5, []), (5, []), (5, [5]), (5, [5])]:
        known.learn([1, 2, 3, followed_by])
        assert known.guess([1, 2, 3], 1) == guessed


def test_the_oldest_are_forgotten_beyond_the_limit(monkeypatch):
    monkeypatch.setattr(drafts, "MAX_KEYS", 10)
    known = known_from(*(range(start, start + 4) for start in range(0, 60, 5)))
    assert len(known._next) <= 10
    assert known.guess([55, 56, 57], 1) == [58]
    assert known.guess([0, 1, 2], 1) == []


# ------------------------------------------------------------ in the engine


def siblings(kit, again, count=6):
    """Turns after one prefix, some of which read and draw the same; `again` tells their keys apart."""
    prefix = kit.ids(99, 11)
    return [
        kit.turn(f"{again}-{i}", [*prefix, *kit.ids(i // 3, 4)], prefix=prefix, seed=i // 2, max_tokens=9 + i % 2)
        for i in range(count)
    ]


@pytest.mark.parametrize("max_rows", [2, 16])
def test_right_guesses_save_passes_and_nothing_else_changes(kit, loaded, monkeypatch, max_rows):
    ours = new_engine(loaded, max_rows=max_rows)
    passes = kit.counted(ours, monkeypatch)
    played = []
    for again in range(3):
        before = len(passes)
        ended = kit.play(ours, siblings(kit, again))
        for key in ended:
            ours.release(key)
        played.append((len(passes) - before, {key.split("-")[1]: turn for key, turn in ended.items()}))
    (first, unguessed), _, (last, guessed) = played
    assert last <= first / 2
    plain = kit.plain()
    for key, turn in guessed.items():
        assert turn.tokens == unguessed[key].tokens
        assert turn.finish_reason == unguessed[key].finish_reason
        expected = kit.plain_logprobs(plain, turn.context, turn.tokens)
        assert turn.logprobs == pytest.approx(expected, abs=1e-5)


def test_wrong_guesses_change_nothing(kit, loaded, monkeypatch):
    def tokens(guess):
        monkeypatch.setattr(Drafts, "guess", guess)
        return {
            turn.key: turn.tokens for turn in kit.play(new_engine(loaded, max_rows=16), siblings(kit, "s")).values()
        }

    none = tokens(lambda self, ids, limit: [])
    assert tokens(lambda self, ids, limit: list(range(limit))) == none
    assert tokens(lambda self, ids, limit: [3] * limit) == none


@pytest.mark.parametrize("right", range(6))
def test_a_turn_goes_on_after_any_number_of_right_guesses(kit, loaded, monkeypatch, right):
    """The slots of wrong guesses are written again: each later token is drawn from the right keys and values."""
    turn = kit.turn("a", kit.ids(1, 5), max_tokens=12)
    truth = kit.play(new_engine(loaded), [turn])["a"].tokens

    def some_right(self, ids, limit):
        done = next((n for n in range(len(truth), 0, -1) if truth[:n][-3:] == list(ids[-3:])), 0)
        guesses = [t if i < right else (t + 1) % 50 for i, t in enumerate(truth[done : done + limit])]
        return guesses if done else []

    monkeypatch.setattr(Drafts, "guess", some_right)
    again = kit.play(new_engine(loaded), [kit.turn("a", kit.ids(1, 5), max_tokens=12)])["a"]
    assert again.tokens == truth
    assert again.logprobs == pytest.approx(kit.plain_logprobs(kit.plain(), again.context, truth), abs=1e-5)


def test_nothing_is_guessed_after_a_stop_token_nor_beyond_the_limit(kit, loaded, monkeypatch):
    stop = 7
    ours = new_engine(loaded, stop=stop)
    given: list[int] = []

    def guess(self, ids, limit):
        given.append(limit)
        return [3, stop, 4][:limit]

    monkeypatch.setattr(Drafts, "guess", guess)
    passes = kit.counted(ours, monkeypatch)
    ended = kit.play(ours, [kit.turn("a", kit.ids(1, 5), max_tokens=4, temperature=0.0)])
    assert max(given) == 3
    assert max(passes[1:], default=1) <= 2
    assert len(ended["a"].tokens) <= 4


def test_a_guided_turn_is_never_guessed(kit, loaded, monkeypatch):
    class Even:
        def mask(self, logits):
            logits[1::2] = -float("inf")

        def accept(self, token):
            assert token % 2 == 0

    def guess(self, ids, limit):
        raise AssertionError("guessed")

    monkeypatch.setattr(Drafts, "guess", guess)
    ended = kit.play(new_engine(loaded), [kit.turn("a", kit.ids(1, 5), guide=Even())])
    assert len(ended["a"].tokens) == 6


def test_many_rows_share_the_room_for_guesses(kit, loaded, monkeypatch):
    monkeypatch.setattr(engine, "DRAFT_ROOM", 8)
    given: list[int] = []
    monkeypatch.setattr(Drafts, "guess", lambda self, ids, limit: given.append(limit) or [])
    kit.play(new_engine(loaded, max_rows=8), [kit.turn(f"s{i}", kit.ids(i, 5), max_tokens=50) for i in range(4)])
    assert max(given) == 2


@pytest.mark.parametrize(("guessing", "kept"), [(0, 0), (1, 0), (2, 2), (8, 8)])
def test_fewer_guesses_than_one_to_four_rows_are_dropped(kit, loaded, monkeypatch, guessing, kept):
    """Eight rows, one guess for each of the first `guessing`; two are enough."""
    ours = new_engine(loaded, max_rows=8)
    for i in range(8):
        ours.submit(kit.turn(f"s{i}", kit.ids(i, 5), max_tokens=9))
    ours.step()
    asked: list[int] = []

    def guess(self, ids, limit):
        asked.append(limit)
        return [3] if len(asked) <= guessing else []

    monkeypatch.setattr(Drafts, "guess", guess)
    passes = kit.counted(ours, monkeypatch)
    ours.step()
    assert engine.FEW_GUESSES == 4
    assert passes == [8 + kept]


def test_dropped_guesses_change_nothing_that_is_sampled(kit, loaded, monkeypatch):
    def tokens(few):
        monkeypatch.setattr(engine, "FEW_GUESSES", few)
        ours = new_engine(loaded, max_rows=16)
        rounds = [kit.play(ours, siblings(kit, again)) for again in range(3)]
        return [{key: turn.tokens for key, turn in ended.items()} for ended in rounds]

    assert tokens(0) == tokens(4) == tokens(1000)


def test_rest_forgets_guesses_so_that_a_resumed_run_computes_the_same(kit, loaded):
    ours = new_engine(loaded)
    turns = [kit.play(ours, [kit.turn("a", kit.ids(1, 5), max_tokens=20)])["a"]]
    ours.release("a")
    ours.reset()
    turns += [kit.play(ours, [kit.turn("a", kit.ids(1, 5), max_tokens=20)])["a"]]
    assert turns[0].logprobs == turns[1].logprobs
