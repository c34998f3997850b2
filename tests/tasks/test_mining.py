from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest

from deedrl.errors import ConfigError, TaskError
from deedrl.tasks.mining import Band, MinedPool, mine, training_mix
from deedrl.types import Action, Completion, Failure, Step, Task, TerminationReason, ToolOutput, Trajectory, Verdict

SOLUTION = ("search", "policy", "refund")
GUESS = ("search", "refund")


def task(name: str, **fields) -> Task:
    return Task.create(name, **fields)


def attempt(of: Task, solved: bool | None, tools=SOLUTION, number: int = 0, **fields) -> Trajectory:
    steps = tuple(
        Step(
            index=index,
            observation="",
            completion=Completion(text=""),
            action=Action(tool_name=tool),
            tool_output=ToolOutput(text=""),
        )
        for index, tool in enumerate(tools)
    )
    milestones = {"looked_up": "search" in tools, "read_policy": "policy" in tools}
    verdict = None if solved is None else Verdict(solved=solved, progress=float(solved), milestones=milestones)
    return Trajectory(
        episode_id=f"{of.prompt}-{number}", task_id=of.id, steps=steps, verdict=verdict, **{"split": "train", **fields}
    )


def attempts(of: Task, pattern: str, failing=GUESS) -> list[Trajectory]:
    return [
        attempt(of, outcome == "1", SOLUTION if outcome == "1" else failing, number)
        for number, outcome in enumerate(pattern)
    ]


def mined_prompts(pool: MinedPool) -> set[str]:
    return {entry.task.prompt for entry in pool.tasks}


def test_low_but_non_zero_success_is_mined():
    patterns = {"never": "0000", "once": "1000", "half": "1100", "mostly": "1110", "always": "1111"}
    tasks = {name: task(name) for name in patterns}
    runs = [run for name, pattern in patterns.items() for run in attempts(tasks[name], pattern)]
    pool = mine(list(tasks.values()), runs)
    assert mined_prompts(pool) == {"once", "half"}
    assert (pool.too_easy, pool.too_hard, pool.too_few_attempts) == (2, 1, 0)


def test_unsolved_tasks_are_mined_on_request():
    never, always = task("never"), task("always")
    runs = attempts(never, "00") + attempts(always, "11")
    assert mined_prompts(mine([never, always], runs, band=Band(include_unsolved=True))) == {"never"}


def test_band_can_be_raised():
    mostly = task("mostly")
    pool = mine([mostly], attempts(mostly, "1110"), band=Band(above=0.5, up_to=0.8))
    assert mined_prompts(pool) == {"mostly"}


def test_task_solved_too_rarely_for_the_band_is_too_hard():
    once = task("once")
    pool = mine([once], attempts(once, "1000"), band=Band(above=0.5, up_to=0.8))
    assert (pool.tasks, pool.too_hard) == ((), 1)


def test_always_solved_task_is_never_hard():
    always = task("always")
    assert mine([always], attempts(always, "11"), band=Band(up_to=1.0)).too_easy == 1


@pytest.mark.parametrize(("above", "up_to"), [(0.5, 0.5), (-0.1, 0.5), (0.0, 1.1)])
def test_band_without_room_is_refused(above, up_to):
    with pytest.raises(ConfigError, match="mining band"):
        Band(above=above, up_to=up_to)


def test_D02_errored_and_unjudged_episodes_are_no_attempts():
    one = task("one")
    lost = attempt(one, None, (), 8, failure=Failure(kind="OSError", phase="reset", message=""))
    pool = mine([one], [*attempts(one, "10"), lost, attempt(one, None, number=9)])
    assert [(entry.attempts, entry.successes) for entry in pool.tasks] == [(2, 1)]


def test_F24_unparsable_episode_is_a_failed_attempt():
    one = task("one")
    lost = attempt(one, None, (), 5, termination=TerminationReason.PARSE_FAILURES)
    (entry,) = mine([one], [attempt(one, True), lost]).tasks
    assert (entry.attempts, entry.successes) == (2, 1)
    assert entry.failure.termination == "parse_failures"


def test_single_attempt_says_too_little():
    one = task("one")
    assert mine([one], attempts(one, "0"), band=Band(include_unsolved=True)).too_few_attempts == 1


def test_F22_held_out_task_is_refused():
    with pytest.raises(TaskError, match="split 'test'"):
        mine([task("one", split="test")], [])


def test_episodes_of_other_tasks_are_counted():
    one, other = task("one"), task("other")
    assert mine([one], attempts(one, "10") + attempts(other, "10")).unmatched_episodes == 2


def test_alike_failures_share_a_cluster_and_others_do_not():
    tasks = [task(name) for name in ("a", "b", "c")]
    runs = attempts(tasks[0], "10") + attempts(tasks[1], "1000") + attempts(tasks[2], "10", failing=("escalate",))
    pool = mine(tasks, runs)
    assert [(set(cluster.task_ids), cluster.failures) for cluster in pool.clusters] == [
        ({tasks[0].id, tasks[1].id}, 4),
        ({tasks[2].id}, 1),
    ]
    assert pool.clusters[0].label == "refund instead of policy; not reached: read_policy; ended by tool_ended"


def test_nearly_alike_failures_are_merged_under_the_commonest():
    tasks = sorted((task(name) for name in ("a", "b", "c")), key=lambda one: one.id, reverse=True)  # the odd one first
    odd = [attempt(tasks[2], True), attempt(tasks[2], False, GUESS, 1, termination=TerminationReason.STEP_LIMIT)]
    runs = attempts(tasks[0], "10") + attempts(tasks[1], "10") + odd
    (cluster,) = mine(tasks, runs, merge_above=0.5).clusters
    assert len(cluster.task_ids) == 3
    assert cluster.label.endswith("ended by tool_ended")
    assert len(mine(tasks, runs, merge_above=1.0).clusters) == 2


def test_result_does_not_depend_on_orders():
    tasks = [task(str(number)) for number in range(12)]
    runs = [
        run
        for number, one in enumerate(tasks)
        for run in attempts(one, "1000", failing=(GUESS, ("escalate",), ("search",))[number % 3])
    ]
    pool = mine(tasks, runs)
    rng = random.Random(1)
    for _ in range(5):
        rng.shuffle(tasks)
        rng.shuffle(runs)
        assert mine(tasks, runs) == pool


def test_version_follows_the_content():
    one, two = task("one"), task("two")
    runs = attempts(one, "10") + attempts(two, "10")
    assert mine([one, two], runs).version != mine([one], runs).version
    assert len(mine([one], runs).version) == 16


def test_pool_reads_back_from_json_equal():
    one = task("one")
    pool = mine([one], attempts(one, "10"))
    assert msgspec.json.decode(msgspec.json.encode(pool), type=MinedPool) == pool


@pytest.fixture
def pool() -> MinedPool:
    """Four tasks of a common failure and one of a rare one."""
    tasks = [task(f"hard {number}") for number in range(5)]
    runs = [run for one in tasks[:4] for run in attempts(one, "10")]
    return mine(tasks, runs + attempts(tasks[4], "10", failing=("escalate",)))


BASE = [task(f"base {number}") for number in range(20)]


def prompts(mix: list[Task]) -> Counter[str]:
    return Counter(one.prompt.split()[0] for one in mix)


def test_mix_holds_the_share_asked_for(pool):
    assert prompts(training_mix(pool, BASE, 0.25, random.Random(0))) == {"hard": 5, "base": 15}


def test_mix_takes_clusters_in_turn(pool):
    rare = pool.clusters[1].task_ids[0]
    mix = training_mix(pool, BASE, 0.5, random.Random(0), count=16)
    assert sum(one.id == rare for one in mix) == 4  # of 8 mined, half from each cluster


def test_mix_repeats_no_base_task_while_others_are_left(pool):
    mix = training_mix(pool, BASE, 0.0, random.Random(0))
    assert sorted(one.id for one in mix) == sorted(one.id for one in BASE)


def test_mix_follows_its_random_stream(pool):
    first, again, other = (training_mix(pool, BASE, 0.5, random.Random(seed)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_mix_of_nothing_mined_is_all_base():
    empty = mine([], [])
    assert prompts(training_mix(empty, BASE, 0.5, random.Random(0))) == {"base": 20}


def test_mix_can_be_all_mined(pool):
    assert prompts(training_mix(pool, [], 1.0, random.Random(0), count=7)) == {"hard": 7}


def test_mix_without_a_base_it_needs_is_refused(pool):
    with pytest.raises(TaskError, match="base pool"):
        training_mix(pool, [], 0.5, random.Random(0), count=4)


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_mix_share_out_of_range_is_refused(pool, share):
    with pytest.raises(ConfigError, match=r"\[0, 1\]"):
        training_mix(pool, BASE, share, random.Random(0))
