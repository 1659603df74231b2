"""Other processes as a test holds them: told what to run, stopped, resumed, killed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from tests.support.waiting import PATIENCE

TOP = Path(__file__).parents[2]


class Failed(Exception):
    """What the code in a child raised: ``name`` is the type of the error."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class Child:
    """A process that has ``locks``, on the engine under test."""

    def __init__(self, url: str, *, before: str = "", **popen: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.engines.child", url],
            cwd=TOP,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **popen,
        )
        self.pid = self._process.pid
        if before:
            self.run(before)

    def open(self, **options: Any) -> Child:
        self.run(f"locks = Locks.from_url(url, **{options!r})")
        return self

    def run(self, code: str) -> Any:
        """Runs code there; what its last expression is worth."""
        self.begin(code)
        return self.outcome()

    def begin(self, code: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(textwrap.dedent(code)).encode() + b"\n")
        self._process.stdin.flush()

    def outcome(self) -> Any:
        assert self._process.stdout
        readable, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        assert readable, f"process {self.pid} has said nothing for {PATIENCE} s"
        line = self._process.stdout.readline()
        assert line, f"process {self.pid} ended with {self._process.wait()}"
        outcome = json.loads(line)
        if "error" in outcome:
            raise Failed(outcome["error"], outcome["message"])
        return outcome["value"]

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_until_stopped()

    def wait_until_stopped(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # It was killed with something unread.
