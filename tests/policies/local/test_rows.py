"""Turns that share rows, part, copy and meet again draw exactly what each of them draws alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deedrl.policies.local.engine import Engine
from deedrl.policies.local.rows import shared_length
from deedrl.policies.local.turn import Turn

STOP = 5


class Parity:
    """A guide that allows tokens of one parity."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed

    def mask(self, logits):
        logits[1 - self._allowed :: 2] = -torch.inf

    def accept(self, token):
        assert token % 2 == self._allowed


@pytest.fixture(scope="module")
def loaded(kit):
    return kit.load()


def new_engine(loaded, **options):
    return Engine(loaded.model, stop_ids=[options.pop("stop", STOP)], **options)


def check_alone(kit, loaded, ended):
    """Each turn again, in an engine of its own."""
    alone = new_engine(loaded)
    for turn in ended:
        guide = Parity(turn.guide._allowed) if turn.guide else None
        fields = {"max_tokens": turn.max_tokens, "temperature": turn.temperature, "seed": turn.seed, "guide": guide}
        again = kit.play(alone, [Turn(key="alone", context=turn.context, prefix=turn.prefix, **fields)])["alone"]
        assert turn.tokens == again.tokens
        assert turn.finish_reason == again.finish_reason
        # Rounding of logits is divided by the temperature, too.
        assert turn.logprobs == pytest.approx(again.logprobs, abs=1e-5 + 1e-6 / (turn.temperature or 1))
        alone.release("alone")


def check_books(engine):
    rows = list(engine._rows)
    assert [row.index for row in rows] == list(range(len(rows)))
    assert len(rows) <= engine._store.rows
    holders = [key for row in rows for key in row.held]
    assert len(holders) == len(set(holders))
    for row in rows:
        assert row.held
        assert set(row.turns) <= set(row.held)
        assert max(row.held.values()) <= len(row.ids)
        assert len({tuple(turn.ids) for turn in row.turns.values()}) <= 1


# ------------------------------------------------------------ any play of siblings


@dataclass
class Episode:
    """What one sequence does: when it comes, what it says, what it is told, and whether its caller goes away."""

    group: int
    start: int
    seed: int
    temperature: float
    parity: int | None
    turns: list[tuple[int, int, int]]
    """Of each turn: max_tokens, which observation follows, steps until the next turn."""
    cancel: tuple[int, bool] | None
    """Step at which its turn is cancelled, and whether it comes back with the same turn."""
    played: int = 0
    context: list[int] = field(default_factory=list)


EPISODES = st.builds(
    Episode,
    group=st.integers(0, 2),
    start=st.sampled_from([0, 0, 0, 1, 4]),
    seed=st.integers(0, 2),
    temperature=st.sampled_from([0.0, 0.05, 0.05, 0.2, 1.0]),
    parity=st.sampled_from([None, None, None, 0, 1]),
    turns=st.lists(
        st.tuples(st.integers(1, 7), st.sampled_from([0, 0, 1]), st.sampled_from([1, 1, 3])), min_size=1, max_size=3
    ),
    cancel=st.none() | st.tuples(st.integers(1, 9), st.booleans()),
)


def play_all(kit, engine, episodes):
    """Plays the episodes through the engine step by step; returns every turn that ended."""
    due: dict[str, int] = {}
    live: dict[str, Episode] = {}
    for number, episode in enumerate(episodes):
        prefix = kit.ids(90, 4) if episode.group < 2 else kit.ids(91, 6)
        episode.context = [*prefix, *kit.ids(episode.group, 5)]
        live[f"e{number}"], due[f"e{number}"] = episode, episode.start
    ended = []
    for now in range(400):
        for key in [key for key, at in due.items() if at == now]:
            episode = live[key]
            engine.submit(
                Turn(
                    key=key,
                    context=tuple(episode.context),
                    prefix=tuple(episode.context[: 4 if episode.group < 2 else 6]),
                    max_tokens=episode.turns[episode.played][0],
                    temperature=episode.temperature,
                    seed=episode.seed + episode.played,
                    guide=None if episode.parity is None else Parity(episode.parity),
                )
            )
        finished = engine.step()
        check_books(engine)
        for turn in finished:
            episode = live[turn.key]
            _, observation, pause = episode.turns[episode.played]
            ended.append(turn)
            episode.played += 1
            if episode.played == len(episode.turns):
                engine.release(turn.key)
                del live[turn.key]
            else:
                episode.context = [*turn.ids, *kit.ids(20 + observation, 4 + observation)]
                due[turn.key] = now + pause
        for key, episode in list(live.items()):
            if episode.cancel is not None and episode.cancel[0] == now and due[key] <= now:
                engine.abandon(key)
                due[key] = now + 2
                if not episode.cancel[1]:
                    engine.release(key)
                    del live[key], due[key]
        if not live:
            break
    assert not live
    assert not len(engine._rows)
    return ended


@given(st.lists(EPISODES, min_size=2, max_size=7), st.integers(1, 7), st.sampled_from([12, 1000]))
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_any_play_of_siblings_equals_each_turn_alone(kit, loaded, episodes, max_rows, prefill):
    engine = new_engine(loaded, max_rows=max_rows, prefill_tokens=prefill)
    check_alone(kit, loaded, play_all(kit, engine, episodes))


# ------------------------------------------------------------ what is saved


def siblings(kit, count, *, seeds=None, **options):
    context = kit.ids(1, 12)
    seeds = seeds or [3] * count
    return [kit.turn(f"s{i}", context, prefix=context[:5], seed=seed, **options) for i, seed in enumerate(seeds)]


def test_turns_that_draw_the_same_are_decoded_as_one_row(kit, loaded, monkeypatch):
    engine = new_engine(loaded, stop=-1)
    passes = kit.counted(engine, monkeypatch)
    ended = kit.play(engine, siblings(kit, 6, max_tokens=4))
    assert passes == [5, 7, 1, 1, 1]
    assert len(engine._rows) == 1
    check_alone_plain(kit, loaded, ended.values())


def check_alone_plain(kit, loaded, turns):
    plain = kit.plain()
    for turn in turns:
        expected = kit.plain_logprobs(plain, turn.context, turn.tokens, turn.temperature)
        assert turn.logprobs == pytest.approx(expected, abs=1e-5)


def test_turns_that_part_have_a_row_for_each_thing_said(kit, loaded, monkeypatch):
    engine = new_engine(loaded, stop=-1)
    passes = kit.counted(engine, monkeypatch)
    ended = kit.play(engine, siblings(kit, 6, seeds=[1, 1, 2, 2, 2, 3], max_tokens=5))
    assert len({tuple(turn.tokens) for turn in ended.values()}) == len(engine._rows) == 3
    assert passes == [5, 7, 3, 3, 3, 3]
    check_alone_plain(kit, loaded, ended.values())


def test_observation_is_computed_once_and_the_siblings_are_one_row_again(kit, loaded, monkeypatch):
    engine = new_engine(loaded, stop=-1)
    # Two begin a step later and so have a row of their own, though they say the same.
    first = siblings(kit, 6, max_tokens=4)
    for turn in first[:4]:
        engine.submit(turn)
    engine.step()
    kit.play(engine, first[4:])
    assert len(engine._rows) == 2
    passes = kit.counted(engine, monkeypatch)
    seconds = [
        kit.turn(turn.key, [*turn.ids, *kit.ids(7, 9)], prefix=turn.prefix, seed=1, max_tokens=3) for turn in first
    ]
    ended = kit.play(engine, seconds)
    assert passes == [1 + 9, 1, 1]
    assert len(engine._rows) == 1
    check_alone_plain(kit, loaded, ended.values())


def test_observation_that_another_row_holds_is_copied_when_a_sibling_comes_later(kit, loaded, monkeypatch):
    engine = new_engine(loaded, stop=-1)
    first = siblings(kit, 3, max_tokens=4)
    kit.play(engine, first)
    passes = kit.counted(engine, monkeypatch)
    seconds = [
        kit.turn(turn.key, [*turn.ids, *kit.ids(7, 9)], prefix=turn.prefix, seed=i, max_tokens=5)
        for i, turn in enumerate(first)
    ]
    engine.submit(seconds[0])
    engine.step()
    engine.submit(seconds[1])
    engine.submit(seconds[2])
    engine.step()
    # The last token of the context is computed again, for what is drawn after it.
    assert passes == [1 + 9, 1 + 1]
    kit.play(engine, [])
    check_alone_plain(kit, loaded, seconds)


def test_turns_that_part_without_a_free_row_wait_for_one(kit, loaded):
    engine = new_engine(loaded, stop=-1, max_rows=2)
    turns = siblings(kit, 5, seeds=[1, 2, 3, 4, 5], max_tokens=5)
    ended = kit.play(engine, turns)
    assert len(ended) == 5
    assert len(engine._rows) == 2
    check_alone_plain(kit, loaded, ended.values())


def test_several_prefixes_are_held_at_once(kit, loaded, monkeypatch):
    engine = new_engine(loaded, stop=-1)
    passes = kit.counted(engine, monkeypatch)
    prefixes = [kit.ids(50 + i, 6 + i) for i in range(6)]
    turns = [
        kit.turn(f"p{i}{j}", [*prefix, *kit.ids(60 + j, 5)], prefix=prefix, max_tokens=4)
        for i, prefix in enumerate(prefixes)
        for j in range(2)
    ]
    ended = kit.play(engine, turns)
    # Four are held; what begins with another one is computed whole, by both.
    assert passes[:5] == [6, 7, 8, 9, 4 * 2 * 5 + 2 * (10 + 5) + 2 * (11 + 5)]
    check_alone_plain(kit, loaded, ended.values())
    for key in ended:
        engine.release(key)
    del passes[:]
    kit.play(engine, [kit.turn("again", [*prefixes[3], 7], prefix=prefixes[3], max_tokens=1)])
    kit.play(engine, [kit.turn("new", [*prefixes[5], 7], prefix=prefixes[5], max_tokens=1)])
    assert passes == [1, 11, 1]


# ------------------------------------------------------------ one of several goes away


@pytest.mark.parametrize("way", ["abandon", "release"])
def test_sibling_that_goes_away_leaves_the_others_whole(kit, loaded, way):
    engine = new_engine(loaded, stop=-1)
    turns = siblings(kit, 3, max_tokens=8)
    for turn in turns:
        engine.submit(turn)
    for _ in range(3):
        engine.step()
    getattr(engine, way)("s0")
    ended = kit.play(engine, [])
    assert set(ended) == {"s1", "s2"}
    check_alone_plain(kit, loaded, ended.values())
    again = kit.turn("s0", turns[0].context, prefix=turns[0].prefix, seed=3, max_tokens=8)
    assert kit.play(engine, [again])["s0"].tokens == ended["s1"].tokens
    longer = [kit.turn(turn.key, [*turn.ids, 9, 9], prefix=turn.prefix) for turn in ended.values()]
    check_alone_plain(kit, loaded, kit.play(engine, longer).values())


def test_cancelled_siblings_without_a_free_row_do_not_wait_for_each_other(kit, loaded):
    engine = new_engine(loaded, stop=-1, max_rows=1)
    turns = siblings(kit, 2, max_tokens=8)
    for turn in turns:
        engine.submit(turn)
    for _ in range(3):
        engine.step()
    for turn in turns:
        engine.abandon(turn.key)
    again = siblings(kit, 2, seeds=[4, 5], max_tokens=4)
    check_alone_plain(kit, loaded, kit.play(engine, again).values())


def test_guided_and_free_turns_of_one_row_draw_from_their_own_distributions(kit, loaded):
    engine = new_engine(loaded, stop=-1)
    context = kit.ids(1, 9)
    guides = [None, Parity(0), Parity(1), None]
    turns = [
        kit.turn(f"g{i}", context, seed=2, temperature=0.5 + 0.5 * (i == 3), guide=guide)
        for i, guide in enumerate(guides)
    ]
    for turn in turns:
        engine.submit(turn)
    engine.step()
    assert [turns[1].tokens[0] % 2, turns[2].tokens[0] % 2] == [0, 1]
    kit.play(engine, [])
    check_alone_plain(kit, loaded, [turns[0], turns[3]])


@given(st.lists(st.integers(0, 1), max_size=9), st.lists(st.integers(0, 1), max_size=9))
def test_shared_length_is_that_of_the_common_beginning(first, second):
    expected = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    assert shared_length(first, second) == (min(len(first), len(second)) if expected is None else expected)
