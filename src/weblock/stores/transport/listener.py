"""The thread that listens for notifications, on one connection for all waiters of this process.

A notification says which waiter has got a lease: ``OWNER FENCE UNTIL``, in microseconds. Other clients of
the server may be able to forge one. So a fence that the server's clock does not explain makes the
waiter ask: a forger cannot choose one that is larger than those of later leases.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

from ..._core.ports import CheckAgain, Granted, Message
from ..._platform.forks import close_in_children
from ..._platform.logs import logger
from ..._platform.threads import BackgroundThread
from .failures import Backoff, Unfit
from .pool import Connection

C = TypeVar("C", bound=Connection)

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
"""Seconds until a listener that has lost its connection opens another."""

AHEAD: Final = 1_000_000
"""By how many microseconds a fence may be ahead of the server's clock; ``head.lua`` has it, too."""

_NOTIFICATION: Final = re.compile(r"([!-~]{1,200}) ([0-9]{1,17}) ([0-9]{1,17})")


def to_notification(owner: str, granted: Granted) -> str:
    """Return the notification that a waiter has a lease."""
    return f"{owner} {granted.fence} {granted.until * 1e6:.0f}"


def from_notification(text: str) -> tuple[str, Message] | None:
    """Return the owner and its message; ``None`` for anything but a notification of ours."""
    parts = _NOTIFICATION.fullmatch(text)
    if parts is None:
        logger.debug("dropped a message of the server that is no notification of ours")
        return None
    fence, until = int(parts[2]), int(parts[3])
    return parts[1], Granted(fence, until / 1e6) if fence <= until + AHEAD else CheckAgain()


class Listener(Generic[C]):
    """Listens from when the first caller waits, and connects again whenever its connection is lost.

    ``hear`` subscribes on a connection, makes all waiters ask again, because notifications may have been
    lost before, and passes on what comes until ``ended`` is set. ``lost`` are the errors of a driver
    whose server is gone.
    """

    def __init__(
        self,
        connect: Callable[[], C],
        hear: Callable[[C], None],
        *,
        lost: tuple[type[BaseException], ...],
    ) -> None:
        self._connect = connect
        self._hear = hear
        self._lost: tuple[type[BaseException], ...] = (*lost, OSError, Unfit)
        self._thread = BackgroundThread("weblock-receiver", self._run)
        self.ended = threading.Event()
        self.connection: C | None = None

    def start(self) -> None:
        """Start listening, if that has not been done."""
        if not self.ended.is_set():
            self._thread.start()

    def hang_up(self) -> None:
        """Make the thread find that its connection has ended, so that it opens another."""
        if connection := self.connection:
            with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as copy:
                copy.shutdown(socket.SHUT_RDWR)

    def close(self, timeout: float = 1.0) -> None:
        self.ended.set()
        self.hang_up()
        self._thread.join(timeout)

    def _run(self) -> None:
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while not self.ended.is_set():
            try:
                self.connection = connection = self._connect()
                close_in_children(connection)
                backoff.reset()
                # It may have been closed before there was anything to hang up.
                if not self.ended.is_set():
                    self._hear(connection)
            except self._lost as error:
                if not self.ended.is_set():
                    logger.debug("the weblock receiver lost its connection: %s", error)
            except Exception:
                if not self.ended.is_set():  # Else it was closed while it was in use.
                    raise
            finally:
                if self.connection:
                    self.connection.close()
            self.ended.wait(backoff.next())
