"""What a model wrote runs within limits and cannot leave its folder."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from deedrl.errors import ToolError
from deedrl.tools.sandbox import SandboxLimits, missing_isolation, open_inside, resolved_inside, run_sandboxed

FAST = SandboxLimits(cpu_s=1, wall_s=3.0, memory_mb=300)
needs_bubblewrap = pytest.mark.skipif(missing_isolation() is not None, reason="needs bubblewrap")


def python(folder: Path, text: str, limits: SandboxLimits = FAST, **options: bool) -> tuple[int, str, str | None]:
    done = run_sandboxed([sys.executable, "-c", text], folder, limits, **options)
    return done.returncode, done.output, done.stopped_by


def test_a_command_runs_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("hello")
    assert python(tmp_path, "print(open('note').read()); open('made', 'w').write('x')") == (0, "hello\n", None)
    assert (tmp_path / "made").read_text() == "x"


def test_processor_time_is_limited(tmp_path: Path) -> None:
    code, _, stopped = python(tmp_path, "while True: pass")
    assert code != 0
    assert stopped in (None, "time")


def test_waiting_is_limited(tmp_path: Path) -> None:
    begin = time.monotonic()
    assert python(tmp_path, "import time; time.sleep(60)", SandboxLimits(wall_s=0.5))[2] == "time"
    assert time.monotonic() - begin < 10


def test_memory_is_limited(tmp_path: Path) -> None:
    code, output, _ = python(tmp_path, "x = bytearray(10 ** 9)")
    assert code != 0
    assert "MemoryError" in output


def test_a_flood_of_output_is_cut(tmp_path: Path) -> None:
    _, output, stopped = python(tmp_path, "while True: print('x' * 1000)", SandboxLimits(output_bytes=5000))
    assert (len(output), stopped) == (5000, "output")


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    code, _, _ = python(tmp_path, "open('big', 'wb').write(bytes(5_000_000))")
    assert code != 0
    assert (tmp_path / "big").stat().st_size <= 1024 * 1024


def test_H14_keys_of_this_process_are_not_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "canary-5512")
    assert "canary" not in python(tmp_path, "import os; print(dict(os.environ))")[1]


def test_a_user_with_many_threads_can_start_one(tmp_path: Path) -> None:
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(SandboxLimits().processes + 20)]
    for thread in threads:
        thread.start()
    try:
        assert python(tmp_path, "print('runs')") == (0, "runs\n", None)
    finally:
        end.set()
        for thread in threads:
            thread.join()


@pytest.mark.skipif(os.getuid() == 0, reason="the kernel does not count processes of root")
def test_processes_are_limited(tmp_path: Path) -> None:
    text = "import os, time\nfor n in range(300):\n  if os.fork() == 0:\n    time.sleep(5); os._exit(0)"
    code, output, _ = python(tmp_path, text, SandboxLimits(processes=20))
    assert code == 1
    assert "BlockingIOError" in output


@needs_bubblewrap
def test_children_are_ended_with_it(tmp_path: Path) -> None:
    text = "import os, time\nfor _ in range(30):\n  if os.fork() == 0:\n    os.setsid(); time.sleep(300)\nprint('done')"
    assert python(tmp_path, text)[1] == "done\n"
    deadline = time.monotonic() + 5
    while _sleepers(str(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _sleepers(str(tmp_path))


def _sleepers(folder: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and "time.sleep(300)" in (entry / "cmdline").read_text():
                found.append(entry.name)
        except OSError:
            continue
    return found


@needs_bubblewrap
@pytest.mark.parametrize(
    "text",
    [
        "open('/etc/passwd').read()",
        "open('/root/x', 'w').write('x')",
        "open('../x', 'w').write('x')",
        "import socket; socket.create_connection(('127.0.0.1', 1), 1)",
        "import os; os.listdir('/home')",
    ],
)
def test_H01_H08_nothing_outside_can_be_reached(tmp_path: Path, text: str) -> None:
    code, output, _ = python(tmp_path, text)
    assert code == 1
    assert "Error" in output


@pytest.mark.parametrize(
    "path",
    ["../x", "a/../../x", "/etc/passwd", "~/x", "a\\..\\x", "%2e%2e/x", "..%2fx", "", "a\0b", "%2Fetc/passwd", ".."],
)
def test_H01_paths_that_lead_out_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ToolError, match="expected the name of a file in the folder"):
        resolved_inside(tmp_path, path)


@pytest.mark.parametrize("path", ["a.txt", "./a.txt", "d/b.txt", "d//b.txt", "new.txt"])
def test_paths_inside_are_found(tmp_path: Path, path: str) -> None:
    (tmp_path / "d").mkdir()
    assert resolved_inside(tmp_path, path).is_relative_to(tmp_path)


def test_H03_links_are_refused_also_dangling_ones_for_writing(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    (tmp_path / "secret").write_text("s")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "dangling").symlink_to(outside)
    (root / "folder").symlink_to(tmp_path)
    for path in ("link", "dangling", "folder/secret"):
        with pytest.raises(ToolError, match="leads out of the folder"):
            open_inside(root, path, os.O_WRONLY | os.O_CREAT)
    assert not outside.exists()


def test_a_file_is_opened_and_a_pipe_is_not(tmp_path: Path) -> None:
    descriptor = open_inside(tmp_path, "new.txt", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"x")
    os.close(descriptor)
    assert (tmp_path / "new.txt").read_text() == "x"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ToolError, match="is no file"):
        open_inside(tmp_path, "pipe")
    with pytest.raises(ToolError, match="no such file"):
        open_inside(tmp_path, "missing")
