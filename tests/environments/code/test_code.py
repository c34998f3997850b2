"""Code repair: pytest really runs, hidden tests decide, and no program reaches the tests."""

from __future__ import annotations

import os
import runpy
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from deedrl.environments.checker import check_environment
from deedrl.environments.suite.code.environment import CodeRepair
from deedrl.environments.suite.code.fixtures import fixtures
from deedrl.environments.suite.code.goal import read_goal
from deedrl.environments.suite.code.rules import complaints
from deedrl.environments.suite.code.runner import TestRun, TestRunner
from deedrl.environments.suite.code.verifier import BLIND, NOT_ALLOWED
from deedrl.environments.suite.code.worlds import KNOWN, UNSEEN
from deedrl.errors import TaskError
from deedrl.rollouts.demonstration import demonstration_policy
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.rollouts.runner import run_episodes_sync
from deedrl.tasks.pool import TaskPool, check_disjoint
from deedrl.tools.sandbox import missing_isolation
from deedrl.types import Action, Split, Task, Verdict, content_hash

SPLITS = get_args(Split)
SHOP = Task.create(
    "Repair shop.py.",
    initial_state={
        "files": {"shop.py": 'def total(price, fee):\n    """price plus fee"""\n    return price - fee\n'},
        "tests": {"test_shop.py": "from shop import total\n\n\ndef test_total():\n    assert total(3, 4) == 7\n"},
    },
    goal_state={"hidden": "from shop import total\n\n\ndef test_hidden_total():\n    assert total(30, 12) == 42\n"},
)


def act(tool_name: str, **parameters: Any) -> Action:
    return Action(tool_name=tool_name, parameters=parameters)


READ, SUBMIT = act("read_file", path="shop.py"), act("submit")
FIX = act("replace_line", path="shop.py", line=3, text="return price + fee")


@pytest.fixture
def desk() -> Iterator[CodeRepair]:
    environment = CodeRepair()
    yield environment
    environment.close()


@pytest.fixture(scope="module")
def runner() -> Iterator[TestRunner]:
    made = TestRunner(1)
    yield made
    made.close()


def play(desk: CodeRepair, task: Task, *actions: Action) -> Verdict:
    desk.reset(options={"task": task})
    for action in actions:
        if any(desk.step(action)[2:4]):
            break
    return desk.current_verdict()


# ------------------------------------------------------------ running tests


def test_a_run_tells_what_passed_and_why_the_rest_failed(runner: TestRunner) -> None:
    result = runner.run(
        {"test_a.py": "def test_one():\n    assert 1\n\ndef test_two():\n    assert 1 + 1 == 3\n"}, ["test_a.py"]
    )
    assert result == TestRun(passed=("test_one",), failed=(("test_two", "assert (1 + 1) == 3"),))


def test_no_tests_at_all_is_not_a_pass(runner: TestRunner) -> None:
    assert not runner.run({"test_a.py": ""}, ["test_a.py"]).ok


def test_a_program_that_does_not_import_fails(runner: TestRunner) -> None:
    result = runner.run({"a.py": "1 / 0", "test_a.py": "import a\n\ndef test_a():\n    pass\n"}, ["test_a.py"])
    assert not result.ok
    assert result.failed


@pytest.mark.parametrize(
    ("body", "stopped"),
    [
        ("while True:\n        pass", "crashed"),
        ("import os\n    os._exit(0)", "crashed"),
        ("import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)", "crashed"),
    ],
)
def test_what_does_not_end_or_ends_too_early_is_no_pass(runner: TestRunner, body: str, stopped: str) -> None:
    result = runner.run({"test_a.py": f"def test_a():\n    {body}\n"}, ["test_a.py"])
    assert (result.ok, result.stopped) == (False, stopped)
    assert runner.run({"test_a.py": "def test_a():\n    pass\n"}, ["test_a.py"]).ok


def test_memory_is_limited(runner: TestRunner) -> None:
    result = runner.run({"test_a.py": "def test_a():\n    x = bytearray(3_000_000_000)\n"}, ["test_a.py"])
    assert not result.ok


def test_a_run_leaves_nothing_for_the_next(runner: TestRunner) -> None:
    leave = "import os\n\ndef test_a():\n    os.makedirs('d/e')\n    open('conftest.py', 'w').write('1 / 0')\n"
    assert runner.run({"test_a.py": leave}, ["test_a.py"]).ok
    look = "import os\n\ndef test_b():\n    assert sorted(os.listdir('.')) == ['test_b.py']\n"
    assert runner.run({"test_b.py": look}, ["test_b.py"]).ok


@pytest.mark.skipif(missing_isolation() is not None, reason="needs bubblewrap")
@pytest.mark.parametrize(
    "body",
    [
        "import socket\n    socket.create_connection(('127.0.0.1', 9), timeout=1)",
        "open('/etc/passwd').read()",
        "open('../outside', 'w').write('x')",
        "open('/tmp/outside', 'w').write('x')",
    ],
)
def test_a_sandbox_has_no_network_and_no_other_files(runner: TestRunner, body: str) -> None:
    text = f"import pytest\n\ndef test_a():\n  with pytest.raises(OSError):\n    {body}\n"
    assert runner.run({"test_a.py": text}, ["test_a.py"]).ok


@pytest.mark.skipif(missing_isolation() is not None, reason="needs bubblewrap")
def test_processes_that_a_run_leaves_behind_are_ended(runner: TestRunner) -> None:
    start = "import subprocess\n\ndef test_a():\n    subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    assert runner.run({"test_a.py": start}, ["test_a.py"]).ok
    look = (
        "import glob\n\ndef test_b():\n"
        "    names = [open(p).read().strip() for p in glob.glob('/proc/[0-9]*/comm')]\n"
        "    assert 'sleep' not in names\n"
    )
    assert runner.run({"test_b.py": look}, ["test_b.py"]).ok


def test_H14_no_key_of_this_process_is_seen(runner: TestRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "canary-7319")
    fresh = TestRunner(1)
    text = "import os\n\ndef test_a():\n    assert 'canary' not in str(os.environ)\n"
    assert fresh.run({"test_a.py": text}, ["test_a.py"]).ok
    fresh.close()


# ------------------------------------------------------------ rules for programs


@pytest.mark.parametrize(
    "source",
    [
        "import os",
        "import re",
        "from re import enum",
        "from os import system",
        "from . import shop",
        "from math import *",
        "eval('1')",
        "__import__('os')",
        "().__class__",
        "(1)._real",
        "raise SystemExit",
        "getattr(1, 'real')",
        "class Yes:\n    def __eq__(self, other):\n        return True",
        "global x",
        "def g():\n    yield it.gi_frame\nit = g()",
        "def gi_frame(): pass\ng = (x for x in [])\ng.gi_frame.f_back",
        "match 1:\n    case object(__class__=c):\n        pass",
        "match 1:\n    case object(real=c):\n        pass",
        "class Yes:\n    match 1:\n        case __eq__:\n            pass",
        "class Yes:\n    import math as __eq__",
        "class Yes:\n    class __eq__:\n        pass",
        "class Yes:\n    __eq__ = print",
        "from string import Formatter",
        "from functools import update_wrapper",
        "from functools import wraps",
        "from statistics import itemgetter",
        "'{0.real}'.format(1)",
        "str.format_map",
        "import math\nmath.floor = len",
        "from collections import Counter\nCounter.update = len",
        "type(1)",
        "vars()",
    ],
)
def test_F13_what_reaches_beyond_the_program_is_not_allowed(source: str) -> None:
    assert complaints(source)


@pytest.mark.parametrize(
    "source",
    [
        "import math\nmath.pi",
        "from re import compile as pattern",
        "from collections import Counter",
        "import shop",
        "from shop import total",
        "class A:\n    def __init__(self):\n        self.x = 1\n\n    def y(self):\n        return self.x",
        "import shop\nshop.total(1, 2)",
        "from datetime import date\ndate(2026, 1, 2).isoformat()",
        "def f(words):\n    words.sort(key=len)\n    return ', '.join(w.strip() for w in words)",
        "try:\n    int('x')\nexcept ValueError as error:\n    print(error.args)",
        "match 1:\n    case int():\n        pass",
        "def f(:",
    ],
)
def test_ordinary_programs_are_allowed(source: str) -> None:
    assert complaints(source, ["shop"]) == []


# ------------------------------------------------------------ tools and verdict


def test_a_repair_is_solved_when_it_is_handed_in(desk: CodeRepair) -> None:
    desk.reset(options={"task": SHOP})
    assert desk.step(READ)[0] == '1 def total(price, fee):\n2     """price plus fee"""\n3     return price - fee'
    assert desk.current_verdict().progress == 0.2
    assert desk.step(act("run_tests"))[0] == "1 of 1 tests fail. test_total: assert -1 == 7"
    assert desk.step(FIX)[0] == "3     return price + fee"
    assert desk.step(act("run_tests"))[0] == "All 1 tests pass."
    assert desk.current_verdict().progress == 0.6
    _, reward, terminated, _, _ = desk.step(SUBMIT)
    assert (reward, terminated) == (1.0, True)


def test_a_change_before_reading_is_a_violation(desk: CodeRepair) -> None:
    assert play(desk, SHOP, FIX, READ, SUBMIT).violations == (BLIND,)


def test_F18_the_answers_of_the_shown_tests_alone_do_not_solve(desk: CodeRepair) -> None:
    verdict = play(desk, SHOP, READ, act("replace_line", path="shop.py", line=3, text="return 7"), SUBMIT)
    assert (verdict.solved, verdict.progress) == (False, 0.6)


def test_F13_a_forbidden_program_is_neither_run_nor_solved(desk: CodeRepair) -> None:
    write = act("write_file", path="shop.py", text="import os\nos._exit(0)\n")
    desk.reset(options={"task": SHOP})
    desk.step(READ)
    desk.step(write)
    assert desk.step(act("run_tests"))[0].startswith("the program is not run: shop.py: 'import os' is not allowed")
    desk.step(SUBMIT)
    assert desk.current_verdict().violations == (NOT_ALLOWED,)


@pytest.mark.parametrize(
    "start",
    ["\ufeff", "# coding: utf-7\n# +AAo-", "\n# -*- coding: utf-7 -*-\n#+AAo-"],
    ids=["byte-order mark", "encoding", "encoding in the second line"],
)
def test_F13_a_program_that_python_would_read_otherwise_gains_nothing(desk: CodeRepair, start: str) -> None:
    forged = "class Yes(int):\n    __eq__ = lambda self, other: True\ndef total(price, fee):\n    return Yes()\n"
    text = f"{start}import os\n{forged}" if start == "\ufeff" else start + forged.replace("\n", "+AAo-") + "\n"
    assert not play(desk, SHOP, READ, act("write_file", path="shop.py", text=text), SUBMIT).milestones["exact"]


def test_what_is_no_python_fails_and_says_so(desk: CodeRepair) -> None:
    desk.reset(options={"task": SHOP})
    desk.step(READ)
    desk.step(act("replace_line", path="shop.py", line=3, text="return price +"))
    assert desk.step(act("run_tests"))[0] == "The tests cannot start: shop.py is no Python."
    desk.step(SUBMIT)
    assert not desk.current_verdict().solved


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (act("replace_line", path="test_shop.py", line=1, text="x"), "is a test"),
        (act("write_file", path="conftest.py", text="x"), "there is no file 'conftest.py'"),
        (act("write_file", path="../shop.py", text="x"), "there is no file"),
        (act("read_file", path="/etc/passwd"), "there is no file"),
        (act("replace_line", path="shop.py", line=9, text="x"), "has no line 9"),
        (act("replace_line", path="shop.py", line=3, text="a\nb"), "expected one line"),
        (act("write_file", path="shop.py", text="x" * 20_000), "at most 10000 characters"),
    ],
)
def test_H01_F13_wrong_calls_are_answered_and_change_nothing(desk: CodeRepair, action: Action, words: str) -> None:
    desk.reset(options={"task": SHOP})
    before = desk.state_hash()
    observation, *_, info = desk.step(action)
    assert not info["ok"]
    assert words in observation
    assert desk.state_hash() == before


def test_a_rename_needs_the_new_name_and_no_trace_of_the_old(desk: CodeRepair) -> None:
    hidden = "from shop import sum_up\n\n\ndef test_hidden():\n    assert sum_up(1, 2) == -1\n"
    goal = {"hidden": hidden, "present": {"shop.py": ["sum_up"]}, "absent": {"shop.py": ["total"]}}
    tests = {"test_shop.py": hidden.replace("test_hidden", "test_sum_up")}
    task = Task.create("", initial_state={"files": SHOP.initial_state["files"], "tests": tests}, goal_state=goal)
    renamed = act("replace_line", path="shop.py", line=1, text="def sum_up(price, fee):")
    kept = act("replace_line", path="shop.py", line=1, text="def sum_up(price, fee, total=1):")
    alias = act("write_file", path="shop.py", text="def total(a, b):\n    return a - b\nsum_up = total\n")
    assert play(desk, task, READ, renamed, SUBMIT).solved
    assert play(desk, task, READ, kept, SUBMIT).solved  # a parameter is no use of the old function
    assert not play(desk, task, READ, alias, SUBMIT).solved


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_F13_F18_every_fixture_gets_the_verdict_it_must(desk: CodeRepair, difficulty: str) -> None:
    tasks = CodeRepair.generate_tasks("train", 6, 5, difficulties=[difficulty])
    for task in tasks:
        for fixture in fixtures(task):
            assert fixture.complaint(play(desk, task, *fixture.actions)) is None, (fixture.name, task)


def test_a_goal_of_another_shape_is_refused() -> None:
    with pytest.raises(TaskError, match="goal_state is not a goal of a code repair"):
        read_goal(Task.create("", goal_state={"hidden": 5}))


# ------------------------------------------------------------ tasks


def test_it_keeps_the_contract() -> None:
    report = check_environment(CodeRepair, tasks=4)
    assert [result.name for result in report.results if not result.ok] == []


@pytest.mark.parametrize("split", SPLITS)
def test_F22_a_longer_list_begins_with_the_shorter(split: Split) -> None:
    tasks = CodeRepair.generate_tasks(split, 54, 3)
    assert CodeRepair.generate_tasks(split, 20, 3) == tasks[:20]
    assert all(task.id == content_hash(task) and task.split == split for task in tasks)


def test_F22_splits_share_nothing_whatever_the_seed() -> None:
    check_disjoint(*(TaskPool(CodeRepair.generate_tasks(split, 90, seed)) for seed, split in enumerate(SPLITS)))


def test_worlds_share_no_words() -> None:
    for name in ("modules", "verbs", "nouns", "broken", "renames"):
        assert not set(getattr(KNOWN, name)) & set(getattr(UNSEEN, name))


def test_the_example_is_solved(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).parents[3] / "examples" / "code_own_tasks.py"), run_name="__main__")
    assert "Verdict(solved=True" in capsys.readouterr().out


def test_a_sandbox_outlives_the_thread_that_started_it() -> None:
    """The kernel ends a child with the thread that made it, if asked to; environments come and go with threads."""
    made = TestRunner(1)
    files = {"test_a.py": "def test_a():\n    pass\n"}
    for _ in range(3):
        thread = threading.Thread(target=made.run, args=(files, ["test_a.py"]))
        thread.start()
        thread.join()
    process = made._idle.queue[0]._process
    assert process is not None
    time.sleep(0.2)
    assert process.poll() is None
    made.close()


def test_D01_a_dead_sandbox_is_replaced_and_never_the_programs_fault(runner: TestRunner) -> None:
    files = {"test_a.py": "def test_a():\n    pass\n"}
    assert runner.run(files, ["test_a.py"]).ok
    process = runner._idle.queue[0]._process
    assert process is not None
    os.killpg(process.pid, signal.SIGKILL)
    assert runner.run(files, ["test_a.py"]).ok


def test_D01_a_sandbox_that_never_answers_is_trouble_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deedrl.environments.suite.code.runner._Sandbox._ask", lambda self, line: None)
    with pytest.raises(OSError, match="gave no answer within"):
        TestRunner(1).run({}, [])


def test_many_demonstrations_at_once_are_all_solved() -> None:
    tasks = CodeRepair.generate_tasks("test", 24, 3)
    specs = [EpisodeSpec(task=task, episode_id=task.id, seed=0) for task in tasks]
    policy = demonstration_policy(specs, CodeRepair)
    played = run_episodes_sync(specs, environment=CodeRepair, policy=policy, rubric=None, concurrency=12)
    assert [trajectory.solved for trajectory in played] == [True] * 24
