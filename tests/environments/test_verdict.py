"""What `verify` may give, and that nothing else counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from counting import Counter, started

from deedrl.environments.environment import Environment
from deedrl.errors import EnvironmentAuthorError
from deedrl.tools.tool import tool
from deedrl.types import Action, Task, Verdict


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "expected bool or Verdict, got None"),
        (1.0, "expected bool or Verdict, got 1.0"),
        (Verdict(solved=False, progress=float("nan")), "expected progress to be a finite number, got nan"),
        (Verdict(solved=False, progress=1.5), "expected progress from 0 to 1, got 1.5"),
        (Verdict(solved=False, progress=-0.5), "expected progress from 0 to 1, got -0.5"),
        (Verdict(solved=True, progress=0.5), "expected progress 1.0 exactly when solved"),
        (Verdict(solved=False, progress=1.0), "expected progress 1.0 exactly when solved"),
        (Verdict(solved="yes", progress=1.0), "expected solved to be True or False, got 'yes'"),  # type: ignore[arg-type]
    ],
)
def test_F13_verdict_out_of_range_is_the_authors_error(given: Any, message: str) -> None:
    class Odd(Counter):
        def verify(self, task: Task) -> Any:
            return given

    with pytest.raises(EnvironmentAuthorError, match=message):
        started(Odd).current_verdict()


@pytest.mark.parametrize("extra", [{"milestones": {"found": 1}}, {"violations": "rude"}, {"violations": (5,)}])
def test_verdict_that_could_not_be_read_back_is_the_authors_error(extra: dict[str, Any]) -> None:
    class Odd(Counter):
        def verify(self, task: Task) -> Any:
            return Verdict(solved=False, **extra)

    with pytest.raises(EnvironmentAuthorError, match="and violations as texts, got"):
        started(Odd).current_verdict()


def test_F13_reward_written_by_the_agent_is_ignored() -> None:
    class Writable(Counter):
        @tool
        def write(self, name: str, text: str) -> str:
            """Writes a file in the workspace."""
            (self.workspace / name).write_text(text)
            return "written"

        def verify(self, task: Task) -> bool:
            return False

    environment = started(Writable)
    for text in ("1.0", "nan", "1.5", "-0.5"):
        parameters = {"name": "reward.txt", "text": text}
        _, reward, terminated, *_ = environment.step(Action(tool_name="write", parameters=parameters))
        assert (reward, terminated) == (0.0, False)
    environment.close()


def test_numpy_bool_is_a_verdict() -> None:
    class Odd(Counter):
        def verify(self, task: Task) -> Any:
            return np.True_

    assert started(Odd).current_verdict() == Verdict(solved=True, progress=1.0)


def test_environment_without_verify_says_so() -> None:
    class Bare(Environment):
        pass

    with pytest.raises(EnvironmentAuthorError, match="Bare has no verify"):
        started(Bare).current_verdict()
