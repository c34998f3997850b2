from __future__ import annotations

import threading
import time

import pytest

from deedrl.tools.limits import ToolInterrupted, alarm, interrupt_thread


def test_D07_interrupt_ends_a_python_loop_in_another_thread() -> None:
    ended = []

    def spin() -> None:
        try:
            while True:
                pass
        except ToolInterrupted:
            ended.append(True)

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    assert thread.ident is not None
    assert interrupt_thread(thread.ident)
    thread.join(timeout=5)
    assert ended == [True]
    assert not thread.is_alive()


def test_interrupt_of_no_thread_is_false() -> None:
    assert interrupt_thread(2**40) is False


def test_interrupt_passes_except_exception() -> None:
    assert not issubclass(ToolInterrupted, Exception)


def test_D07_alarm_ends_a_sleep() -> None:
    start = time.monotonic()
    with pytest.raises(ToolInterrupted), alarm(0.05):
        time.sleep(1000)
    assert time.monotonic() - start < 5


def test_alarm_that_does_not_ring_leaves_nothing() -> None:
    with alarm(0.05):
        pass
    time.sleep(0.1)


def test_alarm_outside_the_main_thread_is_refused() -> None:
    seen: list[str] = []

    def use() -> None:
        try:
            with alarm(1.0):
                pass
        except RuntimeError as error:
            seen.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "needs the main thread" in seen[0]
