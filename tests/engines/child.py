"""Processes that run the code they are told to; ``processes.Child`` is how a test has one.

Orders come in by stdin, one JSON string of Python a line; what the last expression of each is
worth goes out by stdout. ``python -m tests.engines.child SOCKET`` makes these processes: it has
imported what each of them needs, and forks one for every URL that the socket brings.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import weblock
import weblock.stores.file
from weblock import AsyncLocks, Locks

LONGEST = 65536
"""Bytes of a URL, at most."""


def main(orders: socket.socket) -> None:
    """Makes processes until nobody is there to ask for them."""
    signal.signal(signal.SIGCHLD, reap)
    while True:
        url, pipes, _flags, _address = socket.recv_fds(orders, LONGEST, 2)
        if not url:
            return
        if (pid := os.fork()) == 0:
            orders.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, pipe in enumerate(pipes):
                os.dup2(pipe, number)
                os.close(pipe)
            obey(url.decode())
            sys.exit()
        for pipe in pipes:
            os.close(pipe)
        orders.send(b"%d" % pid)


def reap(*_signal: object) -> None:
    """Lets those go that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def obey(url: str) -> None:
    """Does as it is told until nobody is there to tell it."""
    names: dict[str, Any] = {"url": url, "os": os, "time": time, "asyncio": asyncio}
    names |= {"AsyncLocks": AsyncLocks, "Locks": Locks, "weblock": weblock}
    for line in sys.stdin:
        try:
            outcome = {"value": run(json.loads(line), names)}
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            outcome = {"error": type(error).__name__, "message": str(error)}
        os.write(1, json.dumps(outcome).encode() + b"\n")


def run(code: str, names: dict[str, Any]) -> Any:
    """Runs code; what its last expression is worth."""
    body = ast.parse(code).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "<order>", "exec"), names)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "<order>", "eval"), names)


def count_up(url: str, path: str, times: int) -> None:
    """Adds to a number in a file, in sections that would lose updates if they overlapped."""
    with Locks.from_url(url, wait=None) as locks:
        for _ in range(times):
            with locks.hold("counter"):
                value = int(Path(path).read_text())
                time.sleep(0)
                Path(path).write_text(str(value + 1))


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
