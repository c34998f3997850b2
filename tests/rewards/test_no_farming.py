"""Cases F15 and F16 over made-up episodes of every shape: doing nothing earns nothing, calls cannot be farmed."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from deedrl.rewards import default_rubric
from deedrl.types import Action, Completion, Step, TerminationReason, ToolOutput, Trajectory, Verdict

RUBRIC = default_rubric()
QUICK = settings(max_examples=150, deadline=None)

milestones = st.dictionaries(st.sampled_from(["looked", "checked", "acted"]), st.booleans())
shortest = st.one_of(st.none(), st.integers(1, 6))
failures = st.builds(
    Verdict, solved=st.just(False), progress=st.floats(0.0, 1.0, exclude_max=True), milestones=milestones
)
successes = st.builds(Verdict, solved=st.just(True), progress=st.just(1.0), milestones=milestones)


def build_step(tier: str, ok: bool, tokens: int, ignored: int) -> Step:
    rejected = tier == "reject"
    return Step(
        index=0,
        observation="",
        completion=Completion(text="", token_ids=tuple(range(tokens))),
        action=Action(
            tool_name=None if rejected else "look",
            tier=tier,  # type: ignore[arg-type]
            error="no action" if rejected else None,
            ignored_actions=ignored,
        ),
        tool_output=None if rejected else ToolOutput(text="", ok=ok),
    )


any_step = st.builds(
    build_step, st.sampled_from(["strict", "repair", "reject"]), st.booleans(), st.integers(1, 60), st.integers(0, 2)
)
call = st.builds(
    build_step, st.sampled_from(["strict", "repair"]), st.booleans(), st.integers(1, 60), st.integers(0, 1)
)


def reward(steps: list[Step], verdict: Verdict, shortest_steps: int | None) -> float:
    run = Trajectory(episode_id="e", task_id="t", steps=tuple(steps), verdict=verdict, shortest_steps=shortest_steps)
    total = RUBRIC.score(run).total
    assert total is not None
    return total


@QUICK
@given(st.lists(any_step, max_size=12), st.one_of(failures, successes), shortest)
def test_every_reward_lies_in_its_range(steps, verdict, shortest_steps):
    assert 0.0 <= reward(steps, verdict, shortest_steps) <= 1.0


@QUICK
@given(call, failures, shortest)
def test_F16_failing_with_ten_calls_never_beats_failing_with_one(one, verdict, shortest_steps):
    assert reward([one] * 10, verdict, shortest_steps) <= reward([one], verdict, shortest_steps) + 1e-12


@QUICK
@given(
    st.lists(call, min_size=10, max_size=10), failures, successes, st.lists(any_step, min_size=2, max_size=2), shortest
)
def test_F16_failing_with_ten_calls_never_beats_success_with_two(calls, failure, success, two, shortest_steps):
    assert reward(calls, failure, shortest_steps) < reward(two, success, shortest_steps)


@QUICK
@given(
    st.lists(any_step, min_size=1, max_size=4),
    st.lists(any_step, min_size=1, max_size=10),
    st.one_of(failures, successes),
    shortest,
)
def test_F16_padding_an_episode_that_has_an_accepted_call_never_pays(steps, padding, verdict, shortest_steps):
    steps = [build_step("strict", True, 10, 0), *steps]
    assert reward(steps + padding, verdict, shortest_steps) <= reward(steps, verdict, shortest_steps) + 1e-12


@QUICK
@given(failures, shortest, st.sampled_from(TerminationReason))
def test_F15_empty_episode_earns_nothing_whatever_held_at_the_start(verdict, shortest_steps, termination):
    run = Trajectory(
        episode_id="e", task_id="t", verdict=verdict, shortest_steps=shortest_steps, termination=termination
    )
    assert RUBRIC.score(run).total == 0.0


@QUICK
@given(st.lists(any_step, max_size=10), failures, shortest)
def test_F15_episode_without_progress_earns_at_most_two_percent(steps, verdict, shortest_steps):
    assert reward(steps, msgspec.structs.replace(verdict, progress=0.0), shortest_steps) <= 0.02


@QUICK
@given(call, successes, st.integers(1, 6), st.integers(1, 6))
def test_longer_success_earns_less(one, verdict, shortest_steps, more):
    assert reward([one] * (shortest_steps + more), verdict, shortest_steps) < reward(
        [one] * shortest_steps, verdict, shortest_steps
    )
