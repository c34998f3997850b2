"""The process that `ProcessEnvironment` runs an environment in: reads requests, answers each with one reply."""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any, Literal, TypeVar

import msgspec

from deedrl.environments.contract import checked_actions, checked_state_hash, place_of
from deedrl.environments.environment import Environment
from deedrl.environments.loading import load_environment
from deedrl.tools.limits import ToolInterrupted, alarm
from deedrl.tools.tool import ToolCrash
from deedrl.types import Action, Record, Task, Verdict

RecordType = TypeVar("RecordType", bound=Record)


class Request(Record, frozen=True):
    """One call on the environment."""

    operation: Literal["reset", "step", "verdict", "state_hash", "demonstrate", "close"]
    limit_s: float
    """After this time the call is interrupted, if it can be."""
    seed: int | None = None
    task: Task | None = None
    action: Action | None = None


class Problem(Record, frozen=True):
    """An exception, in a form that can leave the process."""

    kind: str
    message: str
    place: str = ""
    """File, line and function, as `place_of` writes them."""
    where: str = ""
    """Traceback."""
    tool_name: str | None = None
    parameters: dict[str, Any] = {}


class Reply(Record, frozen=True):
    """What came of a request: the fields it asked for, or `problem`."""

    problem: Problem | None = None
    observation: str = ""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    ok: bool = True
    ended_by: str | None = None
    interrupted: bool = False
    verdict: Verdict | None = None
    task: Task | None = None
    actions: tuple[Action, ...] = ()
    text: str | None = None


def pack(record: Record) -> bytes:
    """A record as ASCII JSON; strings that are no valid Unicode survive, as they would within one process."""
    return json.dumps(msgspec.to_builtins(record, str_keys=True)).encode("ascii")


def unpack(data: bytes, kind: type[RecordType]) -> RecordType:
    """The record that `pack` was given."""
    return msgspec.convert(json.loads(data), kind)


def main() -> None:
    """Entry point: ``python -m deedrl.environments.worker FILE_DESCRIPTOR REFERENCE``."""
    connection = Connection(int(sys.argv[1]))
    os.dup2(2, 1)
    threading.Thread(target=_exit_with_parent, args=(connection.fileno(),), daemon=True).start()
    try:
        environment = load_environment(sys.argv[2])()
    except Exception as error:  # noqa: BLE001 - reported to the parent, which raises it
        connection.send_bytes(pack(Reply(problem=_problem(error))))
        return
    connection.send_bytes(pack(Reply()))
    operation = ""
    while operation != "close":
        try:
            request = unpack(connection.recv_bytes(), Request)
        except (EOFError, OSError):
            return  # the parent is gone, or has closed its end with a reply unread
        operation = request.operation
        connection.send_bytes(_answer(environment, request))


def _answer(environment: Environment, request: Request) -> bytes:
    try:
        with alarm(request.limit_s):
            return pack(_run(environment, request))
    except (Exception, ToolInterrupted) as error:  # noqa: BLE001 - sent to the parent, which raises it
        return pack(Reply(problem=_problem(error)))


def _run(environment: Environment, request: Request) -> Reply:
    match request.operation:
        case "reset":
            options = {} if request.task is None else {"task": request.task}
            observation, _ = environment.reset(seed=request.seed, options=options)
            return Reply(observation=observation, task=environment.task)
        case "step":
            observation, reward, terminated, truncated, info = environment.step(request.action or Action())
            return Reply(
                observation=observation,
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                ok=info["ok"],
                ended_by=info["ended_by"],
                interrupted=info.get("interrupted", False),
                verdict=info.get("verdict"),
            )
        case "verdict":
            return Reply(verdict=environment.current_verdict())
        case "state_hash":
            return Reply(text=checked_state_hash(environment.state_hash(), type(environment).__name__))
        case "demonstrate":
            author = f"{type(environment).__name__}.demonstrate"
            return Reply(actions=checked_actions(environment.demonstrate(request.task or environment.task), author))
        case "close":
            environment.close()
            return Reply()


def _problem(error: BaseException) -> Problem:
    where = "".join(traceback.format_exception(error))
    if isinstance(error, ToolCrash):
        original = f"{type(error.original).__name__}: {error.original}"
        parameters = msgspec.to_builtins(error.parameters, str_keys=True)
        return Problem(
            kind="ToolCrash", message=original, where=where, tool_name=error.tool_name, parameters=parameters
        )
    return Problem(kind=type(error).__name__, message=str(error), place=place_of(error), where=where)


def _exit_with_parent(descriptor: int) -> None:
    """Ends this process at once when the other end of the connection is gone."""
    hang_up = select.poll()
    hang_up.register(descriptor, 0)
    hang_up.poll()
    os._exit(0)


if __name__ == "__main__":
    main()
