"""Running what a model wrote: limits for every process, no network, and a folder that it cannot leave.

Linux's `bubblewrap` gives a process a file system of its own (Python and the system read-only, one folder to write
into), no network and no view of other processes. Where it is missing or may not make namespaces only the limits of
the kernel are left: processor time, memory, file sizes, open files; that is said once in the log, and
`missing_isolation()` tells why.
"""

from __future__ import annotations

import logging
import os
import resource
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from deedrl.errors import ToolError

log = logging.getLogger(__name__)

INSIDE = "/deedrl-sandbox"
"""Where a sandbox sees its folder, if there is bubblewrap."""


@dataclass(frozen=True)
class SandboxLimits:
    """What one process may use."""

    cpu_s: int = 2
    wall_s: float = 5.0
    memory_mb: int = 512
    file_mb: int = 1
    """Largest file it may write."""
    open_files: int = 64
    processes: int = 64
    """Processes and threads beside those this user has already; the kernel does not count those of root."""
    output_bytes: int = 20_000


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    returncode: int
    output: str
    """Standard output and error, cut at the limit."""
    stopped_by: Literal["time", "output"] | None = None


@cache
def missing_isolation() -> str | None:
    """Why a process here gets limits alone, in words; None if bubblewrap works."""
    if sys.platform != "linux":
        return "bubblewrap needs Linux"
    found = shutil.which("bwrap")
    if found is None:
        return "bubblewrap (bwrap) is not installed"
    probe = [found, "--ro-bind", "/", "/", "--unshare-all", "--die-with-parent", "true"]
    tried = subprocess.run(probe, capture_output=True, text=True, timeout=10, check=False)
    return None if tried.returncode == 0 else f"bubblewrap may not make namespaces here: {tried.stderr.strip()[:200]}"


def isolated(
    command: Sequence[str],
    folder: Path,
    *,
    network: bool = False,
    read: Sequence[Path] = (),
    outlives_thread: bool = False,
) -> list[str]:
    """`command` in a file system of its own with `folder` as its working folder, where bubblewrap works.

    `read`: further paths it may read. It ends with the thread that starts it (the kernel knows no other parent) unless
    it `outlives_thread`; then it must end by itself when its standard input does. Without bubblewrap `command` itself,
    and a warning the first time.
    """
    if (reason := missing_isolation()) is not None:
        _warn_once(reason)
        return list(command)
    libraries = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    visible = [*(Path(p) for p in ("/usr", "/lib", "/lib64", "/bin", "/etc/alternatives")), Path(sys.prefix)]
    visible += [Path(sys.base_prefix), *sorted(libraries), *read]
    arguments = ["bwrap", "--unshare-all", "--new-session", "--cap-drop", "ALL"]
    arguments += ["--share-net"] if network else []
    arguments += [] if outlives_thread else ["--die-with-parent"]
    for path in dict.fromkeys(visible):
        arguments += ["--ro-bind-try", str(path), str(path)]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--bind", str(folder), INSIDE, "--remount-ro", "/"]
    arguments += ["--chdir", INSIDE]
    return [*arguments, *command]


@cache
def _warn_once(reason: str) -> None:
    log.warning(
        "%s: what models write runs with limits of time, memory and files alone, and can use the network", reason
    )


def clean_environment() -> dict[str, str]:
    """The environment variables of a sandbox: none of this process's own, which may hold keys."""
    return {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


def limiter(limits: SandboxLimits, *, cpu: bool = True) -> Callable[[], None]:
    """What to call in a new process so that it and its children keep to `limits`."""
    megabyte = 1024 * 1024
    wanted = {
        resource.RLIMIT_AS: limits.memory_mb * megabyte,
        resource.RLIMIT_FSIZE: limits.file_mb * megabyte,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_CORE: 0,
        **({resource.RLIMIT_CPU: limits.cpu_s} if cpu else {}),
    }
    if (running := _tasks_of_this_user()) is not None:
        wanted[resource.RLIMIT_NPROC] = running + limits.processes

    def apply() -> None:
        for name, value in wanted.items():
            hard = resource.getrlimit(name)[1]
            top = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(name, (top, top))

    return apply


def _tasks_of_this_user() -> int | None:
    """How many processes and threads the kernel counts for this user; None where it does not tell.

    The limit is on all of them, so a smaller one would keep bubblewrap itself from starting.
    """
    if not Path("/proc/self/task").is_dir():
        return None
    count, user = 0, os.getuid()
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and entry.stat().st_uid == user:
                count += len(os.listdir(f"/proc/{entry.name}/task"))
        except OSError:
            continue  # it has ended
    return count


def run_sandboxed(
    command: Sequence[str],
    folder: Path,
    limits: SandboxLimits | None = None,
    *,
    network: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Runs a command to its end or its limits; every process it started is ended with it.

    Without bubblewrap a process that makes a session of its own can outlive it.
    """
    limits = limits or SandboxLimits()
    process = subprocess.Popen(
        isolated(command, folder, network=network),
        cwd=folder,
        env={**clean_environment(), **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=limiter(limits),
    )
    try:
        output, stopped_by = _read(process, limits)
    finally:
        _end(process)
    return Finished(process.wait(), output.decode(errors="replace"), stopped_by)


def _read(process: subprocess.Popen[bytes], limits: SandboxLimits) -> tuple[bytes, Literal["time", "output"] | None]:
    """What the process says until its end, a limit of time, or a limit of output."""
    assert process.stdout is not None
    deadline, output = time.monotonic() + limits.wall_s, b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return output, "time"
            if not selector.select(min(left, 0.1)):
                if process.poll() is not None:
                    return output, None
                continue
            part = os.read(process.stdout.fileno(), 65_536)
            if not part:
                return output, None
            output += part
            if len(output) > limits.output_bytes:
                return output[: limits.output_bytes], "output"


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdout is not None:
        process.stdout.close()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


# ------------------------------------------------------------ files


def resolved_inside(root: Path, path: str) -> Path:
    """The file of that name in `root`, in words a model may use; `ToolError` for whatever leads out of it.

    Refused are absolute paths, ``..`` (percent-encoded and with backslashes too) and links anywhere on the way
    (cases H01, H03). What does not exist yet is allowed: `open_inside` makes it.
    """
    plain = unquote(path).strip()
    parts = plain.split("/")
    if not plain or "\\" in plain or "\0" in plain or plain.startswith(("/", "~")) or ".." in parts:
        raise ToolError(f"expected the name of a file in the folder, e.g. main.py, got '{path[:60]}'")
    found = root
    for part in (part for part in parts if part not in ("", ".")):
        found = found / part
        if found.is_symlink():
            raise ToolError(f"'{path[:60]}' leads out of the folder; expected a file in it")
    return found


def open_inside(root: Path, path: str, flags: int = os.O_RDONLY) -> int:
    """A file descriptor for `path` in `root` that follows no link, even if one appears in between."""
    target = resolved_inside(root, path)
    parts = target.relative_to(root).parts
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = below
        opened = os.open(parts[-1] if parts else ".", flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=folder)
    except OSError as error:
        raise ToolError(f"'{path[:60]}' cannot be opened: {os.strerror(error.errno or 0).lower()}") from error
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise ToolError(f"'{path[:60]}' is no file")
    return opened
