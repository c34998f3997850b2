"""Sampling ahead of updates: what may begin when, nothing dropped, nothing staler than allowed."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.policies.policy import action_text
from deedrl.rollouts.pacing import mean_staleness, pace, run_paced
from deedrl.rollouts.runner import EpisodeSpec, run_episodes
from deedrl.types import Completion, Task


def run(function, *arguments, **options):
    return anyio.run(partial(function, *arguments, **options), backend="asyncio")


@pytest.mark.parametrize(
    ("max_staleness", "expected"),
    [
        (0, [(3, [3]), (4, [4]), (5, [5])]),
        (1, [(3, [3, 4]), (4, [5]), (5, [])]),
        (2, [(3, [3, 4, 5]), (4, []), (5, [])]),
        (9, [(3, [3, 4, 5]), (4, []), (5, [])]),
    ],
)
def test_the_schedule_by_hand(max_staleness, expected):
    assert [(number, list(begin)) for number, begin in pace(range(3, 6), max_staleness)] == expected


def test_a_schedule_without_sense_is_refused():
    with pytest.raises(ValueError, match="max_staleness of at least 0, got -1"):
        list(pace(range(3), -1))
    with pytest.raises(ValueError, match="rise by 1, got steps of 2"):
        list(pace(range(0, 6, 2), 1))


# ---------------------------------------------------------------- any durations


async def logged(batches, max_staleness, play_waits, update_waits):
    """What happened, in order, as (what, batch); durations are numbers of passes of the event loop."""
    events = []

    async def wait(passes):
        for _ in range(passes):
            await anyio.lowlevel.checkpoint()

    async def play(number):
        events.append(("play", number))
        await wait(play_waits[number - batches.start])
        events.append(("played", number))
        return f"batch {number}"

    async def update(number, batch):
        assert batch == f"batch {number}"
        events.append(("update", number))
        await wait(update_waits[number - batches.start])
        events.append(("applied", number))

    await run_paced(batches, play, update, max_staleness=max_staleness)
    return events


@st.composite
def rounds(draw):
    count = draw(st.integers(0, 7))
    waits = st.lists(st.integers(0, 12), min_size=count, max_size=count)
    return draw(st.integers(0, 5)), count, draw(st.integers(0, 3)), draw(waits), draw(waits)


@given(rounds())
def test_I07_any_durations_keep_order_and_bound_and_use_the_room_there_is(given_round):
    start, count, staleness, play_waits, update_waits = given_round
    batches = range(start, start + count)
    events = run(logged, batches, staleness, play_waits, update_waits)
    at = {event: place for place, event in enumerate(events)}
    assert len(at) == len(events) == 4 * count
    for kind in ("play", "update", "applied"):
        assert [number for what, number in events if what == kind] == list(batches)
    for number in batches:
        assert at["played", number] < at["update", number]
        waited_for = number - 1 - staleness
        if waited_for in batches:
            assert at["applied", waited_for] < at["play", number]
        # What need not wait for an update has begun before it.
        if number - 1 in batches and staleness > 0:
            assert at["play", number] < at["update", number - 1]


# ---------------------------------------------------------------- trouble


@pytest.mark.parametrize("where", ["play", "update"])
def test_an_error_is_raised_as_it_is_and_ends_what_is_in_flight(where):
    ended = []

    async def play(number):
        if where == "play" and number == 1:
            raise LookupError("no tasks left")
        try:
            await anyio.sleep(0 if number == 0 else 60)
        finally:
            ended.append(number)

    async def update(number, batch):
        if where == "update":
            raise LookupError("no tasks left")

    with pytest.raises(LookupError, match=r"^no tasks left$"):
        run(run_paced, range(9), play, update, max_staleness=2)
    assert ended == [0, 2] if where == "play" else [0, 1, 2]


def test_cancellation_ends_it():
    begun = []

    async def play(number):
        begun.append(number)
        await anyio.sleep_forever()

    async def update(number, batch):
        raise AssertionError("never reached")

    async def main():
        with anyio.move_on_after(0.01) as scope:
            await run_paced(range(9), play, update, max_staleness=1)
        return scope.cancelled_caught

    assert run(main)
    assert begun == [0, 1]


# ---------------------------------------------------------------- two families, one ten times slower

TOOL_S = {"quick": 0.002, "slow": 0.02}
GROUPS, SIBLINGS, UPDATES, STALENESS = 2, 2, 6, 2


class Versioned:
    """Plays the solution; `version` names the updates applied so far."""

    def __init__(self, script):
        self._script = script
        self.updates = 0

    @property
    def version(self):
        return str(self.updates)

    async def complete(self, request):
        await anyio.lowlevel.checkpoint()
        text = action_text(self._script[request.turn])
        return Completion(text=text, token_ids=(1, 2), policy_version=self.version)

    async def release(self, episode_id):
        pass


def family_specs(batch):
    return [
        EpisodeSpec(
            task=Task.create(
                f"Set the counter to 3. ({batch}-{family}-{group})", goal_state={"value": 3}, family=family
            ),
            episode_id=f"{batch}-{family}-{group}-{sibling}",
            seed=sibling,
        )
        for family in TOOL_S
        for group in range(GROUPS)
        for sibling in range(SIBLINGS)
    ]


def test_I07_a_family_ten_times_slower_is_trained_as_often_as_it_is_sampled(kit):
    class Desk(kit.CounterDesk):
        blocking = True

        def step(self, action):
            time.sleep(TOOL_S[self.task.family])
            return super().step(action)

    policy = Versioned(kit.SOLUTION)
    sampled, trained, events, staleness = Counter(), [], [], []

    async def play(batch):
        events.append(("play", batch))
        specs = family_specs(batch)
        sampled.update(spec.task.family for spec in specs)
        return await run_episodes(specs, environment=Desk, policy=policy, rubric=None)

    async def update(batch, trajectories):
        trained.append(Counter(trajectory.family for trajectory in trajectories))
        assert all(trajectory.solved for trajectory in trajectories)
        versions = [int(step.completion.policy_version) for t in trajectories for step in t.steps]
        staleness.append(batch - min(versions))
        assert 0 <= mean_staleness(trajectories, batch, int) <= STALENESS
        await anyio.sleep(0.005)
        policy.updates += 1
        events.append(("applied", batch))

    run(run_paced, range(UPDATES), play, update, max_staleness=STALENESS)
    # Every episode that was sampled is trained on, in the update of its own batch.
    assert trained == [Counter(dict.fromkeys(TOOL_S, GROUPS * SIBLINGS))] * UPDATES
    assert sum(trained, Counter()) == sampled
    assert 0 <= min(staleness) <= max(staleness) <= STALENESS
    assert [batch for what, batch in events if what == "applied"] == list(range(UPDATES))
    for batch in range(UPDATES - 1):
        assert events.index(("play", batch + 1)) < events.index(("applied", batch))


# ---------------------------------------------------------------- how stale


def test_mean_staleness_weighs_by_tokens(kit):
    def completion(tokens, version):
        return Completion(
            text="", token_ids=tuple(range(tokens)), logprobs=(0.0,) * tokens, policy_version=f"grpo:{version}"
        )

    trajectory = kit.play_one([completion(3, 4), completion(1, 2)])
    assert [len(step.completion.token_ids) for step in trajectory.steps] == [3, 1]

    def number(version):
        return int(version.removeprefix("grpo:"))

    # Three tokens one update old, one of them three: (3 x 1 + 1 x 3) / 4.
    assert mean_staleness([trajectory], 5, number) == 1.5
    assert mean_staleness([], 5, number) == 0.0
