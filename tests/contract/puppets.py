"""Other processes, as a test holds them: told what to do line by line, killed, stopped, resumed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.nursery import AVAILABLE, STRICT, Forked, nursery_of_engines
from tests.support.waiting import PATIENCE

TOP = Path(__file__).parents[2]

WORKERS = "tests.contract.workers"


class Started(subprocess.Popen[bytes]):
    """A process that was not forked, and imports what it needs by itself."""

    def wait_until_stopped(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)


class Worker:
    """A process that runs ``workers.py``, and the pipes to it."""

    def __init__(self, role: str, *args: str | list[str]) -> None:
        words = [each if isinstance(each, str) else json.dumps(each) for each in args]
        if AVAILABLE:
            self._run(Forked(nursery_of_engines(), WORKERS, role, *words))
        else:
            self.start(WORKERS, role, *words)

    def start(self, module: str, *words: str, **environment: str) -> None:
        command = [sys.executable, *STRICT, "-m", module, *words]
        env = {**os.environ, **environment}
        # Without a buffer: what is in one, nobody can select.
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        self._run(Started(command, cwd=TOP, env=env, **pipes))

    def _run(self, process: Forked | Started) -> None:
        self._process = process
        self.pid = process.pid

    def say(self, message: Any) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def hear(self, within: float = PATIENCE) -> Any:
        assert self._process.stdout
        readable, _, _ = select.select([self._process.stdout], [], [], within)
        assert readable, f"process {self.pid} has said nothing for {within} s"
        line = self._process.stdout.readline()
        assert line, f"process {self.pid} ended with {self._process.wait()}"
        return json.loads(line)

    def kill(self) -> None:
        """As by ``kill -9``: it runs nothing more of its own."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # It was killed with something unread.


class Puppet(Worker):
    """A process with one actor, which does what it is told."""

    def __init__(self, api: str, url: str | list[str], options: dict[str, Any]) -> None:
        super().__init__("puppet", api, url, json.dumps(options))
        assert self.hear() == "ready"

    def do(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        self.begin(verb, *args, **kwargs)
        return self.hear()

    def begin(self, verb: str, *args: Any, **kwargs: Any) -> None:
        self.say([verb, args, kwargs])

    def stop(self) -> None:
        """Stops every thread of it, and returns when they have stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        self._process.wait_until_stopped()

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
