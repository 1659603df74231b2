"""Other processes as a test holds them: told what to run, stopped, resumed, killed."""

from __future__ import annotations

import json
import os
import select
import signal
import textwrap
from typing import Any

from tests.support.nursery import Forked, nursery_of_engines
from tests.support.waiting import PATIENCE

CODE = "tests.engines.child"


class Failed(Exception):
    """What the code in a child raised: ``name`` is the type of the error."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class Child:
    """A process that has ``locks``, on the engine under test."""

    def __init__(self, url: str, *, before: str = "") -> None:
        self._process = Forked(nursery_of_engines(), CODE, url)
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
        order = json.dumps(textwrap.dedent(code)).encode() + b"\n"
        while order:
            order = order[self._process.stdin.write(order) :]

    def outcome(self) -> Any:
        readable, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        assert readable, f"process {self.pid} has said nothing for {PATIENCE} s"
        line = self._process.stdout.readline()
        assert line, f"process {self.pid} has ended"
        outcome = json.loads(line)
        if "error" in outcome:
            raise Failed(outcome["error"], outcome["message"])
        return outcome["value"]

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_until_stopped()

    def wait_until_stopped(self) -> None:
        """Returns when none of its threads runs any more."""
        self._process.wait_until_stopped()

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kills it; returns when it is no more."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        self._process.stdin.close()
        self._process.stdout.close()
