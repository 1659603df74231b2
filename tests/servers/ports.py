"""Free ports, of which each is given once."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

FIRST, END = 10_000, 20_000
"""Below the ports of outgoing connections, also with the 10,000 that a node of a cluster adds to have another."""

BLOCK = 400
"""Ports that a process takes at once: more than most of a run need, and enough for three runs."""

CLAIMS = 30_000
"""The first of the ports whose only use is that a process that is bound to one has a block."""


def free_port() -> int:
    """A port of loopback that nobody listens on, and that this process has given to nobody before.

    A client that a test forgot to close goes on asking for its server. On a port that was given again
    it would find the server of another test.
    """
    return next(port for port in _ports if _is_free(port))


def _own_ports() -> Iterator[int]:
    """The ports that are this process's alone, without an end: given again only when all have been given.

    A server needs a moment to begin to listen. Until then its port looks free to other processes of this
    run, and of another run on the same machine.
    """
    blocks = [range(first, first + BLOCK) for first in range(FIRST, END, BLOCK)]
    start = os.getpid() % len(blocks)
    own = []
    for block in (*blocks[start:], *blocks[:start]):
        if _claimed(block):
            own.append(block)
            yield from block
    while True:
        for block in own or blocks:
            yield from block


def _claimed(block: range) -> bool:
    """Whether no other process has these ports: then this one has them until it ends."""
    claim = socket.socket()
    try:
        claim.bind(("127.0.0.1", CLAIMS + block.start // BLOCK))
    except OSError:
        claim.close()
        return False
    claim.detach()
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


_ports = _own_ports()
