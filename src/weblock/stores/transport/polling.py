"""Waiting until sockets can be read, by ``poll`` where the operating system has it."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Final

from ..._platform.forks import Open


class SelectPoll:
    """The methods of ``select.poll`` that weblock uses, by ``select``, which Windows has too."""

    def __init__(self) -> None:
        self._fds: set[int] = set()

    def register(self, fd: int | Open, _eventmask: int, /) -> None:
        self._fds.add(_descriptor(fd))

    def unregister(self, fd: int | Open, /) -> None:
        self._fds.remove(_descriptor(fd))

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        """Return the descriptors that can be read, with their events.

        Waits at most ``timeout`` milliseconds for the first; ``None`` waits without end.
        """
        seconds = None if timeout is None else timeout / 1000
        try:
            readable, _, _ = select.select(self._fds, (), (), seconds)
        except (OSError, ValueError):
            # One of them was closed, and select does not say which: reading it does.
            readable = list(self._fds)
        return [(fd, READABLE) for fd in readable]


def _descriptor(fd: int | Open) -> int:
    return fd if isinstance(fd, int) else fd.fileno()


new_poll: Final[Callable[[], SelectPoll]] = getattr(select, "poll", SelectPoll)

READABLE: Final[int] = getattr(select, "POLLIN", 1)
