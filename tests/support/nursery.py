"""Processes of a test that need not import anything: they are forked by one that has imported it all.

Redis's driver alone takes half a second of a processor to import, and hundreds of tests start processes.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Any

TOP = Path(__file__).parents[2]

RUNS = -1
"""In the place of the status of a process that has not ended."""

AVAILABLE = hasattr(os, "fork") and hasattr(socket, "send_fds")

STRICT = ("-W", "error", "-W", "ignore:This process:DeprecationWarning")
"""What makes warnings errors, but for that of a fork beside other threads: tests fork on purpose."""

LARGEST = 1 << 17
"""Bytes of an order: it has the environment."""


class Forked:
    """A process that runs ``main()`` of a module, used like a ``subprocess.Popen`` with pipes."""

    def __init__(self, nursery: Nursery, module: str, *words: str) -> None:
        stdin, to_it = os.pipe()
        from_it, stdout = os.pipe()
        self._nursery = nursery
        try:
            self.pid = nursery.ask("fork", module, words, dict(os.environ), fds=(stdin, stdout))
        finally:
            os.close(stdin)
            os.close(stdout)
            self.stdin = FileIO(to_it, "w")
            self.stdout = FileIO(from_it)
        self._status: int | None = None

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal, unless it is known to have ended: its id may be another's by then."""
        if self._status is None:
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Returns how it ended, when it has ended."""
        status = self._look(0)
        assert status is not None
        return status

    def poll(self) -> int | None:
        """How it ended; ``None`` if it runs."""
        return self._look(os.WNOHANG)

    def close(self) -> None:
        """Kills it if it runs, and closes the pipes to it."""
        self.kill()
        self.wait()
        for pipe in (self.stdin, self.stdout):
            pipe.close()

    def _look(self, options: int) -> int | None:
        if self._status is None and (status := self._nursery.ask("wait", self.pid, options)) >= 0:
            self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def wait_until_stopped(self) -> None:
        """Returns when all its threads stand still."""
        self._nursery.ask("wait", self.pid, os.WUNTRACED)


class Nursery:
    """The process that forks them, and whose children they are."""

    def __init__(self, *modules: str) -> None:
        self._guard = threading.Lock()
        self._control, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, *STRICT, "-m", __name__, str(its.fileno()), *modules],
                cwd=TOP,
                pass_fds=[its.fileno()],
            )
        atexit.register(self.close)

    def ask(self, *order: Any, fds: tuple[int, ...] = ()) -> int:
        with self._guard:
            socket.send_fds(self._control, [json.dumps(order).encode()], fds)
            return int(self._control.recv(64))

    def close(self) -> None:
        """Ends it; what it has forked goes on."""
        self._control.close()
        self._process.wait()


@cache
def nursery(*modules: str) -> Nursery:
    """The nursery of this test process that has imported these modules."""
    return Nursery(*modules)


@cache
def nursery_of_engines() -> Nursery:
    """The one that has imported all engines with their drivers, which is what takes the time."""
    from weblock import stores  # A page of the docs, which is forked too, begins without weblock.

    return nursery(
        *(each.name for each in pkgutil.walk_packages(stores.__path__, "weblock.stores."))
    )


def main() -> None:
    """Is the nursery; and, where it has forked, the process that was wanted."""
    control = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.freeze()  # What has been imported stays: no process need look whether it is garbage.
    wanted = _serve(control)
    control.close()
    if wanted:
        module, words, environment = wanted
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[1:] = words
        importlib.import_module(module).main()


def _serve(control: socket.socket) -> list[Any] | None:
    """Follows orders to their end; returns, in a process that it has forked, what that is to run."""
    while True:
        order, fds, _flags, _address = socket.recv_fds(control, LARGEST, 2)
        if not order:
            return None
        verb, *rest = json.loads(order)
        if verb == "fork":
            answer = os.fork()
            if not answer:
                for number, fd in enumerate(fds):
                    os.dup2(fd, number)
                    os.close(fd)
                return rest
            for fd in fds:
                os.close(fd)
        else:
            pid, status = os.waitpid(*rest)
            answer = status if pid else RUNS
        control.send(str(answer).encode())


if __name__ == "__main__":
    main()
