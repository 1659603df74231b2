"""The waiting of a request for a lock, which ends when nobody wants the lock any more."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from .inbox import Inbox

LOOK_AFTER: Final = 0.05
"""Seconds of waiting after which it is looked whether the client is still there."""


class ClientGone(Exception):
    """The client left while its request was waiting for a lock."""


class Waiting:
    """A ``with`` block in which a request waits; raises ``ClientGone`` when its client has gone.

    So it does after ``end``. One that is ``unwanted`` from the start ends if it has to wait at all.
    """

    __slots__ = ("_cancelled_before", "_ended", "_inbox", "_task", "_timer", "_unwanted", "_watch")

    def __init__(self, inbox: Inbox, *, unwanted: bool) -> None:
        self._inbox = inbox
        self._unwanted = unwanted
        self._ended = False
        self._watch: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelled_before = task.cancelling()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOOK_AFTER, self.end if self._unwanted else self._look)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        if self._watch:
            self._watch.cancel()
        if not self._ended:
            self._ended = True
        elif self._task.uncancel() <= self._cancelled_before and exc_type is asyncio.CancelledError:
            raise ClientGone from None

    def end(self) -> None:
        """Has it wait no longer."""
        if not self._ended:
            self._ended = True
            self._task.cancel()

    def _look(self) -> None:
        self._watch = asyncio.ensure_future(self._inbox.until_gone())
        self._watch.add_done_callback(self._is_gone)

    def _is_gone(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled():
            watch.exception()  # A server that cannot receive has no client any more.
            self.end()
