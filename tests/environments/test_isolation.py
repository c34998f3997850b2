from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from gymnasium.utils.env_checker import check_env

from deedrl.environments.isolation import ProcessEnvironment, WorkerDied, WorkerRaised
from deedrl.environments.loading import load_environment
from deedrl.environments.worker import Request, pack
from deedrl.errors import ConfigError, EnvironmentAuthorError, TaskError
from deedrl.tools.tool import ToolCrash
from deedrl.types import Action, Task, Verdict

TASK = Task.create(prompt="count to two")
EARLIER: list[psutil.Process] = []


def call(name: str, **parameters: object) -> Action:
    return Action(tool_name=name, parameters=parameters)


@pytest.fixture(autouse=True)
def _earlier_processes() -> None:
    EARLIER[:] = psutil.Process().children(recursive=True)


@pytest.fixture
def environment(stuck_ref: str) -> Iterator[ProcessEnvironment]:
    made = ProcessEnvironment(stuck_ref, call_timeout_s=20.0)
    made.reset(seed=1, options={"task": TASK})
    yield made
    made.close()


def children() -> list[psutil.Process]:
    """Processes that this test has started; libraries that earlier tests used may have left some of their own."""
    return [process for process in psutil.Process().children(recursive=True) if process not in EARLIER]


def test_same_episode_as_in_this_process(environment: ProcessEnvironment, stuck_ref: str) -> None:
    local = load_environment(stuck_ref)()
    assert local.reset(seed=1, options={"task": TASK}) == environment.reset(seed=1, options={"task": TASK})
    for action in (call("refuse"), call("nothing"), call("echo"), call("count_up"), call("count_up")):
        assert local.step(action) == environment.step(action)
    assert environment.current_verdict() == Verdict(solved=True, progress=1.0)
    assert environment.state_hash() == "2"
    assert environment.toolbox.schemas() == local.toolbox.schemas()


@pytest.mark.parametrize("name", ["sleep", "loop"])
def test_D07_interrupted_call_is_an_observation_and_the_episode_goes_on(
    environment: ProcessEnvironment, name: str
) -> None:
    environment.step(call("count_up"))
    observation, reward, terminated, truncated, info = environment.step(call(name))
    assert observation == f"{name} did not finish in time and was stopped"
    assert (reward, terminated, truncated, info["ok"]) == (0.0, False, False, False)
    assert environment.step(call("count_up"))[0] == "2"
    environment.close()
    assert children() == []


@pytest.mark.parametrize("name", ["stubborn", "stubborn_async"])
def test_D07_call_that_ignores_the_interrupt_ends_the_episode(environment: ProcessEnvironment, name: str) -> None:
    threads = set(threading.enumerate())
    observation, reward, terminated, truncated, info = environment.step(call(name))
    assert observation == f"{name} did not finish within 0.3 s; the episode had to be ended"
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["timed_out"] is True
    assert environment.current_verdict() == Verdict(solved=False)
    assert children() == []
    assert set(threading.enumerate()) <= threads


def test_D21_dead_worker_raises_and_is_rebuilt_on_reset(environment: ProcessEnvironment) -> None:
    with pytest.raises(WorkerDied, match=r"'step' \(exit code 9\)"):
        environment.step(call("die"))
    with pytest.raises(WorkerDied):
        environment.step(call("count_up"))
    environment.reset(seed=1, options={"task": TASK})
    assert environment.step(call("count_up"))[0] == "1"


def test_D21_worker_killed_between_episodes_is_rebuilt(environment: ProcessEnvironment) -> None:
    (worker,) = children()
    worker.kill()
    environment.reset(seed=1, options={"task": TASK})
    assert environment.step(call("count_up"))[0] == "1"
    assert worker not in children()


def test_D07_close_from_another_thread_ends_a_running_call(environment: ProcessEnvironment) -> None:
    seen: list[type[BaseException]] = []

    def step() -> None:
        try:
            environment.step(call("stubborn"))
        except WorkerDied as error:
            seen.append(type(error))

    thread = threading.Thread(target=step)
    thread.start()
    time.sleep(0.1)
    environment.close()
    thread.join(timeout=5)
    assert not thread.is_alive()
    assert seen == [WorkerDied]
    assert children() == []


def test_processes_started_by_a_tool_end_with_the_environment(environment: ProcessEnvironment) -> None:
    pid = int(environment.step(call("spawn"))[0])
    assert psutil.pid_exists(pid)
    environment.close()
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"


def test_crash_of_a_tool_keeps_name_parameters_and_message(environment: ProcessEnvironment) -> None:
    with pytest.raises(ToolCrash, match=r"tool 'crash' called with \{'word': 'x'\} raised .*KeyError: 'x'") as caught:
        environment.step(call("crash", word="x"))
    assert caught.value.tool_name == "crash"
    assert environment.step(call("count_up"))[0] == "1"


def test_author_errors_keep_their_class(environment: ProcessEnvironment) -> None:
    with pytest.raises(EnvironmentAuthorError, match="allows the tool 'cuont_up', which does not exist"):
        environment.reset(options={"task": Task.create(prompt="", tools=("cuont_up",))})
    with pytest.raises(TaskError, match="expected a task"):
        environment.reset(options={"task": {"promt": "x"}})


def test_printing_does_not_disturb_the_protocol(environment: ProcessEnvironment) -> None:
    assert environment.step(call("shout"))[0] == "shouted"


def test_text_that_is_not_unicode_travels(environment: ProcessEnvironment) -> None:
    assert environment.step(call("echo", text="Grüße \x00 中文"))[0] == "Grüße \ufffd 中文"
    observation, *_, info = environment.step(call("echo", text="\ud800"))
    assert "surrogate" in observation
    assert info["ok"] is False


def test_an_exception_in_the_worker_comes_with_its_place_and_keeps_its_traceback_apart(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(
        "from deedrl import Environment\n\nclass Broken(Environment):\n    def setup(self, task):\n        1 / 0\n"
        "\n    def demonstrate(self, task):\n        return 5\n"
    )
    made = ProcessEnvironment(str(path), call_timeout_s=20.0)
    with pytest.raises(WorkerRaised) as caught:
        made.reset(seed=1, options={"task": TASK})
    assert str(caught.value) == f"ZeroDivisionError: division by zero ({path}:5 in setup)"
    assert "Traceback" in caught.value.trace
    with pytest.raises(EnvironmentAuthorError, match=r"Broken\.demonstrate: expected a list of Action, got 5"):
        made.demonstrate(TASK)
    made.close()


def test_worker_whose_parent_hangs_up_says_nothing(stuck_ref: str, capfd: pytest.CaptureFixture[str]) -> None:
    made = ProcessEnvironment(stuck_ref, call_timeout_s=20.0)
    made.reset(seed=1, options={"task": TASK})
    worker = made._worker
    assert worker is not None
    worker._connection.send_bytes(pack(Request(operation="state_hash", limit_s=1.0)))
    assert worker._connection.poll(20.0)
    worker._connection.close()
    worker._process.wait(timeout=20)
    assert "Traceback" not in capfd.readouterr().err


def test_D12_unseeded_resets_are_reproducible(environment: ProcessEnvironment) -> None:
    def draw() -> list[int]:
        environment.reset(seed=7)
        return [int(environment.np_random.integers(1000)) for _ in range(2) if environment.reset()]

    assert draw() == draw()


def test_gymnasiums_checker_passes(stuck_ref: str) -> None:
    environment = ProcessEnvironment(stuck_ref)
    check_env(environment, skip_render_check=True)
    environment.close()
    assert children() == []


def test_reference_that_leads_nowhere_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="no file"):
        ProcessEnvironment("nowhere/file.py:Class")


def test_worker_ends_when_its_parent_is_killed(stuck_ref: str) -> None:
    pid = os.fork()
    if pid == 0:
        orphaned = ProcessEnvironment(stuck_ref)
        orphaned.reset(seed=1)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and _workers_of(stuck_ref):
        time.sleep(0.02)
    assert _workers_of(stuck_ref) == []


def _workers_of(ref: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if ref in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found
