"""Waiting until sockets can be read, by ``poll`` where the operating system has it."""

from __future__ import annotations

import select
import socket
import struct
import sys
from collections.abc import Callable
from typing import Final, Protocol

from .greenlets import patched_by


class HasFileno(Protocol):
    """A socket, for instance."""

    def fileno(self) -> int: ...


class Poll(Protocol):
    """The part of ``select.poll``'s objects that weblock uses."""

    def register(self, fd: int | HasFileno, eventmask: int, /) -> None: ...

    def unregister(self, fd: int | HasFileno, /) -> None: ...

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        """Return the descriptors that can be read, with their events.

        Waits at most ``timeout`` milliseconds for the first; ``None`` waits without end.
        """


class SelectPoll:
    """Polls with ``select``, which Windows has too. It knows no event but ``READABLE``."""

    def __init__(self) -> None:
        self._fds: set[int] = set()

    def register(self, fd: int | HasFileno, _eventmask: int, /) -> None:
        self._fds.add(_descriptor(fd))

    def unregister(self, fd: int | HasFileno, /) -> None:
        self._fds.remove(_descriptor(fd))

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        seconds = None if timeout is None else timeout / 1000
        try:
            readable, _, _ = select.select(self._fds, (), (), seconds)
        except (OSError, ValueError):
            # One of them was closed, and select does not say which: reading it does.
            readable = list(self._fds)
        return [(fd, READABLE) for fd in readable]


def _descriptor(fd: int | HasFileno) -> int:
    return fd if isinstance(fd, int) else fd.fileno()


new_poll: Final[Callable[[], Poll]] = getattr(select, "poll", SelectPoll)

READABLE: Final[int] = getattr(select, "POLLIN", 1)


def time_out_in_kernel(sock: socket.socket) -> None:
    """Let the kernel watch over a socket's timeout, where it can.

    A socket with a timeout of Python's own is polled before it is written to or read: a system call
    more for each, and one more turn at the interpreter. One that timed out in the kernel raises
    ``BlockingIOError``.
    """
    seconds = sock.gettimeout()
    plain = (
        type(sock) is socket.socket and patched_by() is None
    )  # TLS and greenlets have their own.
    if not plain or not seconds or not sys.platform.startswith("linux"):
        return
    whole = int(seconds)
    limit = struct.pack("@ll", whole, max(1, int((seconds - whole) * 1e6)))
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    except OSError:
        return
    sock.settimeout(None)
