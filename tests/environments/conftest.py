from __future__ import annotations

from pathlib import Path

import pytest

STUCK = '''
import ctypes, os, time
from deedrl import Environment, ToolError, tool

class Stuck(Environment):
    def setup(self, task):
        self.count = 0

    @tool
    def count_up(self) -> int:
        """Adds one."""
        self.count += 1
        return self.count

    @tool
    def refuse(self) -> str:
        raise ToolError("not like this")

    @tool
    def crash(self, word: str) -> str:
        raise KeyError(word)

    @tool(timeout_s=0.3)
    def sleep(self) -> str:
        time.sleep(1000)

    @tool(timeout_s=0.3)
    def loop(self) -> str:
        while True:
            pass

    @tool(timeout_s=0.3)
    def stubborn(self) -> str:
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                pass

    @tool(timeout_s=0.3)
    async def stubborn_async(self) -> str:
        import asyncio
        while True:
            try:
                await asyncio.sleep(1000)
            except BaseException:
                pass

    @tool
    def die(self) -> str:
        os._exit(9)

    @tool
    def spawn(self) -> int:
        """Starts a process and leaves it."""
        import subprocess
        return subprocess.Popen(["sleep", "1000"]).pid

    @tool
    def shout(self) -> str:
        print("{not protocol}")
        return "shouted"

    @tool
    def echo(self, text: str) -> str:
        return text

    def state_hash(self):
        return str(self.count)

    def verify(self, task):
        return self.count == 2
'''


@pytest.fixture(scope="session")
def stuck_ref(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Reference to an environment whose tools hang, crash and die."""
    path: Path = tmp_path_factory.mktemp("stuck") / "stuck.py"
    path.write_text(STUCK)
    return f"{path}:Stuck"
