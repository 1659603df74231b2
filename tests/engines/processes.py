"""Other processes as a test holds them: told what to run, stopped, resumed, killed."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.waiting import PATIENCE, eventually

TOP = Path(__file__).parents[2]


class Failed(Exception):
    """What the code in a child raised: ``name`` is the type of the error."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class Maker:
    """Makes the processes of a run. Each begins with all imported, as if it had just been started."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-W", "error", "-m", "tests.engines.child"]
        number = theirs.fileno()
        self._process = subprocess.Popen([*command, str(number)], cwd=TOP, pass_fds=[number])
        theirs.close()
        atexit.register(self.close)

    def process(self, url: str, *pipes: int) -> int:
        """The number of a new process that reads from one pipe, and writes to the other."""
        socket.send_fds(self._socket, [url.encode()], pipes)
        return int(self._socket.recv(100))

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


the_maker = functools.cache(Maker)


class Child:
    """A process that has ``locks``, on the engine under test."""

    def __init__(self, url: str, *, before: str = "") -> None:
        stdin, self._orders = os.pipe()
        self._outcomes, stdout = os.pipe()
        self.pid = the_maker().process(url, stdin, stdout)
        self._handle = os.pidfd_open(self.pid)
        os.close(stdin)
        os.close(stdout)
        self._heard = os.fdopen(self._outcomes, "rb")
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
            order = order[os.write(self._orders, order) :]

    def outcome(self) -> Any:
        readable, _, _ = select.select([self._heard], [], [], PATIENCE)
        assert readable, f"process {self.pid} has said nothing for {PATIENCE} s"
        line = self._heard.readline()
        assert line, f"process {self.pid} has ended"
        outcome = json.loads(line)
        if "error" in outcome:
            raise Failed(outcome["error"], outcome["message"])
        return outcome["value"]

    def stop(self) -> None:
        signal.pidfd_send_signal(self._handle, signal.SIGSTOP)
        self.wait_until_stopped()

    def wait_until_stopped(self) -> None:
        """Returns when none of its threads runs any more."""
        tasks = Path(f"/proc/{self.pid}/task")
        eventually(lambda: all(map(_is_stopped, tasks.iterdir())))

    def resume(self) -> None:
        signal.pidfd_send_signal(self._handle, signal.SIGCONT)

    def kill(self) -> None:
        """Kills it; returns when it is no more."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        ended, _, _ = select.select([self._handle], [], [], PATIENCE)
        assert ended, f"process {self.pid} has not ended"

    def close(self) -> None:
        self.kill()
        self._heard.close()
        os.close(self._orders)
        os.close(self._handle)


def _is_stopped(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return True  # It has ended.
