"""Many episodes: independence, failures, order, interruption."""

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter

import pytest

from deedrl.environments.isolation import ProcessEnvironment
from deedrl.errors import DeedRLError, EnvironmentAuthorError
from deedrl.policies.scripted import FlakyPolicy, ScriptedPolicy, SlowPolicy
from deedrl.rollouts.demonstration import demonstration_policy
from deedrl.rollouts.episode import environment_seed
from deedrl.rollouts.failures import RolloutsStopped
from deedrl.rollouts.runner import FailurePolicy, Limits, run_episodes_sync
from deedrl.types import TerminationReason


def specs_with_one_crash(kit, count, crashing):
    healthy, broken = kit.make_task(), kit.make_task(crash=True)
    specs = kit.make_specs(count, task=healthy)
    return [
        type(spec)(episode_id=spec.episode_id, seed=spec.seed, task=broken if index == crashing else healthy)
        for index, spec in enumerate(specs)
    ]


# ---------------------------------------------------------------- failures


def test_D01_one_failing_rollout_of_sixteen(kit):
    trajectories = kit.play_many(specs_with_one_crash(kit, 16, crashing=7))
    assert [t.errored for t in trajectories] == [index == 7 for index in range(16)]
    failure = trajectories[7].failure
    assert "the disk is on fire" in failure.message
    assert "set_value" in failure.message
    assert failure.attempts == 3
    assert trajectories[7].termination is TerminationReason.ENVIRONMENT_ERROR
    assert trajectories[7].reward is None
    assert all(t.solved for t in trajectories if not t.errored)


@pytest.mark.parametrize("where", ["policy", "environment", "on_trajectory"])
def test_D01_ctrl_c_still_stops_the_run(kit, where):
    def script(request):
        if where == "policy" and request.episode_id == "e2":
            signal.raise_signal(signal.SIGINT)
        return kit.SOLUTION[request.turn]

    class Interrupted(kit.CounterDesk):
        def setup(self, task):
            super().setup(task)
            if where == "environment" and len(kept) == 2:
                signal.raise_signal(signal.SIGINT)

    kept = []

    def keep(trajectory):
        kept.append(trajectory.episode_id)
        if where == "on_trajectory" and len(kept) == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        kit.play_many(kit.make_specs(50), script, Interrupted, concurrency=1, on_trajectory=keep)
    assert kept[:2] == ["e0", "e1"]
    assert len(kept) <= 3


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, SystemExit])
def test_D01_what_ends_a_task_ends_one_episode_only_when_a_tool_lets_it_out(kit, blocking, error):
    """A call inside the tool was cancelled, say; taken for the end of the runner's own task, episodes would be lost."""

    class Ending(kit.CounterDesk):
        def setup(self, task):
            super().setup(task)
            if self.np_random_seed == doomed:
                raise error

    Ending.blocking = blocking
    specs = kit.make_specs(6)
    doomed = environment_seed(specs[2].seed)
    played = kit.play_many(specs, environment=Ending, failures=kit.lenient, concurrency=2)
    assert [t.errored for t in played] == [index == 2 for index in range(6)]
    assert played[2].failure.kind == "RuntimeError"


def test_D01_a_request_that_the_policys_own_client_cancelled_is_a_failure_of_one_episode(kit):
    def script(request):
        if request.episode_id == "e1":
            raise asyncio.CancelledError("the connection was closed")
        return kit.SOLUTION[request.turn]

    played = kit.play_many(kit.make_specs(4), script, failures=kit.lenient, concurrency=2)
    assert [t.termination.value for t in played] == ["goal", "policy_error", "goal", "goal"]


@pytest.mark.parametrize("nothing", [None, "text"])
def test_D01_a_policy_that_returns_no_completion_is_a_failure_and_no_endless_loop(kit, nothing):
    class Forgetful(ScriptedPolicy):
        async def complete(self, request):
            return nothing

    [played] = kit.play_many(kit.make_specs(1), Forgetful(kit.SOLUTION), failures=kit.lenient)
    assert played.termination is TerminationReason.POLICY_ERROR
    assert "expected a Completion of the policy, got " in played.failure.message


def test_D01_an_exception_without_a_text_is_a_failure_like_any_other(kit):
    class Broken(Exception):
        def __str__(self):
            return self.reason  # was never set

    def script(request):
        raise Broken

    [played] = kit.play_many(kit.make_specs(1), script, failures=kit.lenient)
    assert (played.failure.kind, played.failure.message) == ("Broken", "(its text raised AttributeError)")


def test_D01_a_release_that_fails_costs_no_episode(kit, caplog):
    class Unreleasable(ScriptedPolicy):
        async def release(self, episode_id):
            raise ConnectionError("no route; api_key=canary0123")

    played = kit.play_many(kit.make_specs(3), Unreleasable(kit.SOLUTION))
    assert all(t.solved for t in played)
    assert "release of episode e0 failed: ConnectionError: no route" in caplog.text
    assert "canary" not in caplog.text


def test_D02_failed_episodes_have_no_reward_and_too_many_stop_the_run(kit):
    class RarelyStarts(kit.CounterDesk):
        def setup(self, task):
            super().setup(task)
            if self.np_random_seed % 8 != 0:
                raise ConnectionError("no sandbox left")

    handed: list = []
    with pytest.raises(RolloutsStopped, match="reset: ConnectionError: no sandbox left") as stopped:
        kit.play_many(
            kit.make_specs(400),
            environment=RarelyStarts,
            on_trajectory=handed.append,
            failures=FailurePolicy(retries=0),
        )
    assert isinstance(stopped.value, DeedRLError)
    assert len(stopped.value.trajectories) == len(handed) < 60
    assert all(t.reward is None and t.verdict is None for t in handed if t.errored)


def test_D02_fourteen_of_sixteen_resets_fail(kit):
    class Failing(kit.CounterDesk):
        def setup(self, task):
            if task.initial_state.get("crash"):
                raise ConnectionError("no sandbox left")
            super().setup(task)

    good, bad = kit.make_task(), kit.make_task(crash=True)
    specs = [
        type(s)(episode_id=s.episode_id, task=good if i in (4, 9) else bad) for i, s in enumerate(kit.make_specs(16))
    ]
    with pytest.raises(RolloutsStopped, match="of 16 episodes failed"):
        kit.play_many(specs, environment=Failing, failures=FailurePolicy(retries=0))
    allowed = kit.play_many(specs, environment=Failing, failures=FailurePolicy(retries=0, max_failure_share=0.9))
    assert [t.reward is None for t in allowed] == [i not in (4, 9) for i in range(16)]


def test_same_failure_of_every_episode_stops_early_and_names_the_tool(kit):
    started: set[str] = set()

    def script(request):
        started.add(request.episode_id)
        return kit.SOLUTION[request.turn]

    with pytest.raises(RolloutsStopped, match=r"ToolCrash.*set_value.*disk is on fire"):
        kit.play_many(kit.make_specs(1000, task=kit.make_task(crash=True)), script, concurrency=4)
    assert len(started) < 20


def test_D04_retry_in_a_fresh_environment_with_the_same_seeds(kit):
    built, resets = Counter(), []

    class Counted(kit.CounterDesk):
        def __init__(self):
            built["made"] += 1

        def setup(self, task):
            super().setup(task)
            resets.append(self.np_random_seed)

        def close(self):
            built["closed"] += 1
            super().close()

    policy = FlakyPolicy(ScriptedPolicy(kit.SOLUTION), {"e0"}, failures=2)
    trajectory = kit.play_one(policy, environment=Counted)
    assert trajectory.termination is TerminationReason.GOAL
    assert trajectory.failure is None
    assert trajectory.provenance.attempt == 3
    assert built == {"made": 3, "closed": 3}
    assert len(set(resets)) == 1


def test_D04_retries_are_bounded(kit):
    policy = FlakyPolicy(ScriptedPolicy(kit.SOLUTION), {"e0"}, failures=99)
    trajectories = kit.play_many(kit.make_specs(3), policy, failures=FailurePolicy(retries=1))
    assert trajectories[0].failure.attempts == 2
    assert trajectories[0].failure.phase == "policy"
    assert trajectories[0].termination is TerminationReason.POLICY_ERROR


def test_D21_crashed_environment_is_rebuilt_and_a_healthy_one_is_used_again(kit):
    built = []

    class Counted(kit.CounterDesk):
        def __init__(self):
            built.append(self)

        def setup(self, task):
            if self in dead:
                raise BrokenPipeError("the process behind this environment is gone")
            super().setup(task)

    dead: set = set()

    def script(request):
        if request.episode_id == "e1" and request.turn == 1 and not dead:
            dead.add(built[-1])
            raise BrokenPipeError("died in step 2")
        return kit.SOLUTION[request.turn]

    trajectories = kit.play_many(kit.make_specs(4), script, Counted, concurrency=1)
    assert all(t.solved for t in trajectories)
    assert [t.provenance.attempt for t in trajectories] == [1, 2, 1, 1]
    assert len(built) == 2


def test_D21_environment_that_dies_between_episodes_costs_a_retry_only(kit):
    class DiesAfterOne(kit.CounterDesk):
        used = False

        def reset(self, **options):
            if self.used:
                raise BrokenPipeError("gone")
            DiesAfterOne.resets += 1
            result = super().reset(**options)
            self.used = True
            return result

    DiesAfterOne.resets = 0
    trajectories = kit.play_many(kit.make_specs(3), environment=DiesAfterOne, concurrency=1)
    assert all(t.solved for t in trajectories)
    assert DiesAfterOne.resets == 3


def test_failing_close_is_logged_and_costs_nothing(kit, caplog):
    class Sticky(kit.CounterDesk):
        def close(self):
            raise OSError("handle is busy")

    assert kit.play_one(environment=Sticky).solved
    assert "handle is busy" in caplog.text


def test_factory_of_something_else_is_the_authors_bug(kit):
    with pytest.raises(RolloutsStopped, match="expected the environment factory to return a deedrl Environment"):
        kit.play_many(kit.make_specs(2), environment=dict)


def test_full_disk_in_on_trajectory_stops_the_run_at_once(kit):
    kept = []

    def store(trajectory):
        if len(kept) == 3:
            raise OSError(28, "No space left on device")
        kept.append(trajectory)

    with pytest.raises(OSError, match="No space left"):
        kit.play_many(kit.make_specs(100), concurrency=2, on_trajectory=store)
    assert len(kept) == 3


# ---------------------------------------------------------------- keys and order


def test_C19_rewards_are_keyed_by_episode_id(kit):
    def script(request):
        return "unparsable" if request.episode_id in ("e1", "e3") else kit.SOLUTION[request.turn]

    trajectories = kit.play_many(kit.make_specs(5), script)
    rewards = {t.episode_id: t.reward for t in trajectories}
    assert list(rewards) == ["e0", "e1", "e2", "e3", "e4"]
    assert [reward > 0.5 for reward in rewards.values()] == [True, False, True, False, True]


def test_C19_an_episode_id_that_comes_twice_is_an_error(kit):
    with pytest.raises(ValueError, match="'e0' came twice"):
        kit.play_many(kit.make_specs(2) + kit.make_specs(1))


def test_F24_episodes_without_an_answer_stay_in_the_denominator(kit):
    def script(request):
        return "unparsable" if request.episode_id in ("e0", "e4", "e8") else kit.SOLUTION[request.turn]

    trajectories = kit.play_many(kit.make_specs(10), script)
    assert len(trajectories) == 10
    assert sum(t.solved is True for t in trajectories) == 7
    assert sum(t.solved is None for t in trajectories) == 0
    assert sum(t.termination is TerminationReason.PARSE_FAILURES for t in trajectories) == 3


def test_trajectories_come_in_the_order_of_specs(kit):
    class Reversed(ScriptedPolicy):
        async def complete(self, request):
            import anyio

            await anyio.sleep(0.02 * (4 - int(request.episode_id[1:])))
            return await super().complete(request)

    finished = []
    trajectories = kit.play_many(
        kit.make_specs(4), Reversed(kit.SOLUTION), on_trajectory=lambda t: finished.append(t.episode_id)
    )
    assert [t.episode_id for t in trajectories] == ["e0", "e1", "e2", "e3"]
    assert finished == ["e3", "e2", "e1", "e0"]


def test_specs_are_taken_as_episodes_finish(kit):
    taken, ahead = [], []

    def endless():
        for spec in kit.make_specs(40):
            taken.append(spec)
            yield spec

    kit.play_many(endless(), concurrency=4, on_trajectory=lambda t: ahead.append(len(taken) - len(ahead)))
    assert max(ahead) <= 4
    assert len(ahead) == 40


def test_no_specs_give_no_trajectories(kit):
    assert kit.play_many([]) == []


def test_demonstrations_solve_their_tasks(kit):
    specs = [type(s)(episode_id=s.episode_id, task=kit.make_task(str(i))) for i, s in enumerate(kit.make_specs(3))]
    trajectories = kit.play_many(specs, demonstration_policy(specs, kit.CounterDesk))
    assert all(t.solved for t in trajectories)
    assert trajectories[0].steps[0].action.reasoning == "The task says so."


def test_missing_demonstration_is_the_authors_bug(kit):
    class Silent(kit.CounterDesk):
        def demonstrate(self, task):
            return ()

    specs = kit.make_specs(1)
    [trajectory] = kit.play_many(specs, demonstration_policy(specs, Silent), Silent, failures=kit.lenient)
    assert trajectory.failure.kind == EnvironmentAuthorError.__name__
    assert "demonstrate" in trajectory.failure.message


# ---------------------------------------------------------------- concurrency


def test_I01_rollouts_do_not_wait_for_the_slowest_tool(kit):
    """One rollout's first call comes back when the 15 others are over, which in lock-step would never be."""
    others_done = threading.Event()
    finished = []

    class Patient(kit.CounterDesk):
        blocking = True

        @kit.tool(timeout_s=100.0)
        def wait_for_all(self) -> str:
            """Comes back when every other rollout is over."""
            return "all are done" if others_done.wait(90.0) else "nobody came"

    def script(request):
        if request.episode_id == "e0" and request.turn == 0:
            return kit.call("wait_for_all")
        return kit.call("read_value", label=str(request.turn)) if request.turn < 5 else kit.call("finish")

    def note(trajectory):
        finished.append(trajectory.episode_id)
        if len(finished) == 15:
            others_done.set()

    patient = Limits(loop_warn=None, loop_end=None, call_timeout_s=100.0)
    played = kit.play_many(kit.make_specs(16), script, Patient, limits=patient, concurrency=16, on_trajectory=note)
    assert [len(t.steps) for t in played] == [6] * 16
    assert played[0].steps[0].tool_output.text == "all are done"
    assert finished[-1] == "e0"


def test_I03_requests_are_in_flight_together(kit):
    policy = SlowPolicy(ScriptedPolicy(kit.SOLUTION), delay_s=0.05)
    played = kit.play_many(kit.make_specs(32), policy, concurrency=16)
    assert policy.peak_in_flight == 16
    assert all(t.solved for t in played)


def test_each_blocking_environment_keeps_one_thread_of_its_own(kit):
    threads: dict[int, set[int]] = {}

    class Homebody(kit.CounterDesk):
        blocking = True

        def __init__(self):
            threads[id(self)] = {threading.get_ident()}

        def setup(self, task):
            super().setup(task)
            threads[id(self)].add(threading.get_ident())

        def verify(self, task):
            threads[id(self)].add(threading.get_ident())
            return super().verify(task)

        def close(self):
            threads[id(self)].add(threading.get_ident())
            super().close()

    kept = []
    kit.play_many(kit.make_specs(12), environment=lambda: kept.append(Homebody()) or kept[-1], concurrency=3)
    assert [len(seen) for seen in threads.values()] == [1] * len(threads)
    assert len(threads) == 4  # three in use, one asked whether it blocks
    assert kit.environment_threads() == []


def test_environment_that_does_not_block_runs_in_the_event_loop(kit):
    idents = set()

    class Quick(kit.CounterDesk):
        def setup(self, task):
            super().setup(task)
            idents.add(threading.get_ident())

    kit.play_many(kit.make_specs(3), environment=Quick)
    kit.play_many(kit.make_specs(3), environment=lambda: Quick())
    assert idents == {threading.get_ident()}


def test_gymnasium_wrappers_may_stay_on(kit):
    from gymnasium.wrappers import TimeLimit

    trajectory = kit.play_one(
        lambda r: kit.call("set_value", value=r.turn + 10),
        environment=lambda: TimeLimit(kit.CounterDesk(), max_episode_steps=2),
    )
    assert trajectory.termination is TerminationReason.STEP_LIMIT
    assert len(trajectory.steps) == 2


def test_D07_timed_out_environment_is_not_used_again(kit):
    built = []

    class Counted(kit.HangingDesk):
        def __init__(self):
            built.append(1)

    def script(request):
        return kit.call("spin") if request.episode_id == "e1" else kit.SOLUTION[request.turn]

    trajectories = kit.play_many(kit.make_specs(4), script, Counted, concurrency=1)
    assert [t.termination.value for t in trajectories] == ["goal", "timeout", "goal", "goal"]
    assert len(built) == 2


def test_D07_tool_asleep_outside_python_does_not_keep_the_process_alive():
    program = """
        import time
        from deedrl.environments.environment import Environment
        from deedrl.policies.scripted import ScriptedPolicy
        from deedrl.rollouts.runner import EpisodeSpec, run_episodes_sync
        from deedrl.tools.tool import tool
        from deedrl.types import Action, Task

        class Sleeper(Environment):
            @tool(timeout_s=0.05)
            def doze(self) -> str:
                "Sleeps in C."
                time.sleep(3600)

            def verify(self, task):
                return False

        specs = [EpisodeSpec(episode_id="e", task=Task.create("go"))]
        policy = ScriptedPolicy([Action(tool_name="doze")])
        [done] = run_episodes_sync(specs, environment=Sleeper, policy=policy, rubric=None)
        print(done.termination.value, done.verdict)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "timeout None"


def test_D07_tool_asleep_in_a_process_of_its_own_is_an_error_observation(kit, tmp_path):
    program = """
        import time
        from deedrl.environments.environment import Environment
        from deedrl.tools.tool import tool

        class Sleeper(Environment):
            @tool(timeout_s=0.05)
            def doze(self) -> str:
                "Sleeps in C."
                time.sleep(3600)

            @tool(ends_episode=True)
            def finish(self) -> str:
                "Ends."
                return "finished"

            def verify(self, task):
                return True
    """
    (tmp_path / "sleeper.py").write_text(textwrap.dedent(program))
    made = []

    def environment():
        made.append(ProcessEnvironment(f"{tmp_path}/sleeper.py:Sleeper"))
        return made[-1]

    trajectory = kit.play_one([kit.call("doze"), kit.call("finish")], environment=environment)
    assert trajectory.termination is TerminationReason.GOAL
    assert trajectory.steps[0].tool_output.ok is False
    assert "doze did not finish" in trajectory.steps[1].observation
    assert kit.environment_threads() == []
    with pytest.raises(Exception, match="before reset"):  # closed: its process is gone
        made[-1].current_verdict()


def test_hanging_calls_do_not_pile_up_threads(kit, monkeypatch):
    monkeypatch.setattr("deedrl.rollouts.runner.MAX_ABANDONED_THREADS", 2)
    with pytest.raises(DeedRLError, match="hang and cannot be stopped"):
        kit.play_many(
            kit.make_specs(40), lambda request: kit.call("stubborn"), kit.HangingDesk, concurrency=4, limits=Limits()
        )


def test_unscored_without_a_rubric(kit):
    policy = ScriptedPolicy(kit.SOLUTION)
    [trajectory] = run_episodes_sync(kit.make_specs(1), environment=kit.CounterDesk, policy=policy, rubric=None)
    assert trajectory.solved is True
    assert trajectory.reward is None
