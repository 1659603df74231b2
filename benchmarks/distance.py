"""A server that is some way off: a process in between passes everything on after a delay.

It waits with ``select``, which is exact to less than 0.1 ms, where the timers of an event loop are exact
to a millisecond.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

from . import machine


@contextmanager
def distant(port: int, delay: float) -> Iterator[int]:
    """Return a port of loopback that leads to another, ``delay`` seconds away in each direction."""
    ours, theirs = machine.processes.Pipe()
    process = machine.processes.Process(target=_pass_on, args=(port, delay, theirs))
    with machine.ended([process]):
        process.start()
        yield ours.recv()


def _pass_on(port: int, delay: float, told: Connection) -> None:
    machine.is_worker()
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        told.send(listener.getsockname()[1])
        _Line(listener, port, delay).run()


class _Line:
    """Passes on what each side says, ``delay`` seconds later, in its order."""

    def __init__(self, listener: socket.socket, port: int, delay: float) -> None:
        self._listener = listener
        self._port = port
        self._delay = delay
        self._other: dict[socket.socket, socket.socket] = {}
        self._on_its_way: deque[tuple[float, socket.socket, bytes]] = deque()

    def run(self) -> None:
        while True:
            wait = None
            if self._on_its_way:
                wait = max(0.0, self._on_its_way[0][0] - time.monotonic())
            readable, _, _ = select.select([self._listener, *self._other], [], [], wait)
            self._hear(readable)
            while self._on_its_way and self._on_its_way[0][0] <= time.monotonic():
                _, to, data = self._on_its_way.popleft()
                self._say(to, data)

    def _hear(self, readable: Sequence[socket.socket]) -> None:
        for each in readable:
            if each is self._listener:
                near, _ = each.accept()
                there = socket.create_connection(("127.0.0.1", self._port))
                for one, other in ((near, there), (there, near)):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._other[one] = other
            elif each in self._other:
                data = _received(each)
                self._on_its_way.append((time.monotonic() + self._delay, self._other[each], data))
                if not data:
                    del self._other[each]

    def _say(self, to: socket.socket, data: bytes) -> None:
        try:
            if data:
                to.sendall(data)
            else:
                to.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # That side has gone, and is heard no more.


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except OSError:
        return b""
