"""A server that is some way off: a process in between passes everything on after a delay.

It waits with ``select``, which is exact to less than 0.1 ms, where the timers of an event loop are exact
to a millisecond.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    """Pass on what each side says, ``delay`` seconds later, in its order."""
    machine.is_worker()
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    told.send(listener.getsockname()[1])
    other: dict[socket.socket, socket.socket] = {}
    on_its_way: deque[tuple[float, socket.socket, bytes]] = deque()
    while True:
        wait = max(0.0, on_its_way[0][0] - time.monotonic()) if on_its_way else None
        readable, _, _ = select.select([listener, *other], [], [], wait)
        for each in readable:
            if each is listener:
                near, _ = listener.accept()
                there = socket.create_connection(("127.0.0.1", port))
                other |= {near: there, there: near}
                for one in (near, there):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                continue
            data = b""
            with suppress(OSError):
                data = each.recv(65536)
            on_its_way.append((time.monotonic() + delay, other[each], data))
            if not data:
                del other[each]
        while on_its_way and on_its_way[0][0] <= time.monotonic():
            _, to, data = on_its_way.popleft()
            with suppress(OSError):  # That side may have gone.
                if data:
                    to.sendall(data)
                else:
                    to.shutdown(socket.SHUT_WR)
