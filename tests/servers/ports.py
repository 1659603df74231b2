"""Free ports, of which each is given once."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from itertools import cycle

FIRST, END = 10_000, 20_000
"""Below the ports of outgoing connections, also with the 10,000 that a node of a cluster adds to have another."""


def free_port() -> int:
    """A port of loopback that nobody listens on, and that this process has given to nobody before.

    A client that a test forgot to close goes on asking for its server. On a port that was given again
    it would find the server of another test.
    """
    return next(port for port in _ports if _is_free(port))


def _own_ports() -> Iterator[int]:
    """The ports of this process of a run, without an end; two runs at once begin at different ones."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = range(FIRST + worker, END, workers)
    start = os.getpid() % len(own)
    return cycle([*own[start:], *own[:start]])


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


_ports = _own_ports()
