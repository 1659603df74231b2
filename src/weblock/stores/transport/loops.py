"""What belongs to one event loop each, and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Generic, Protocol, TypeVar

from ..._platform.loops import running


class OfLoop(Protocol):
    """Connections, for instance."""

    loop: asyncio.AbstractEventLoop

    def close(self) -> None:
        """End it. It must run in the loop."""


T = TypeVar("T", bound=OfLoop)
R = TypeVar("R")


class ByLoop(Generic[T]):
    """What ``new`` makes for each event loop, when it is first needed there.

    No weak reference to a loop could do this: connections have references to theirs.
    """

    def __init__(self, new: Callable[[], T]) -> None:
        self._new = new
        self._by_loop: dict[asyncio.AbstractEventLoop, T] = {}
        self.latest: T | None = None
        """What belongs to the loop that last asked."""

    def here(self) -> T:
        """Return what belongs to the loop that runs."""
        loop, latest = asyncio.get_running_loop(), self.latest
        if latest and latest.loop is loop:  # As it is nearly always.
            return latest
        if loop not in self._by_loop:
            self.forget_closed()
            self._by_loop[loop] = self._new()
        self.latest = found = self._by_loop[loop]
        return found

    def all(self) -> list[T]:
        """Return what there is of all loops."""
        return list(self._by_loop.values())

    def close(self) -> None:
        """End everything, each in its own loop."""
        self.forget_closed()
        for each in self.all():
            if each.loop is running():
                each.close()
            else:
                with contextlib.suppress(RuntimeError):  # The loop was closed just now.
                    each.loop.call_soon_threadsafe(each.close)

    def forget_closed(self) -> None:
        """Drop what belongs to loops that have been closed."""
        for loop in list(self._by_loop):
            if loop.is_closed():
                self._by_loop.pop(loop, None)
        if (latest := self.latest) and latest.loop.is_closed():
            self.latest = None


class BeforeLoopEnds:
    """Calls ``then`` before the running loop is closed, or when ``now`` is called.

    ``asyncio.run`` closes the asynchronous generators that its loop has seen, while the loop can
    still close a connection. Nothing else tells that a loop is about to end.
    """

    def __init__(self, then: Callable[[], None]) -> None:
        self._generator = _until_closed(then)
        with contextlib.suppress(StopIteration):
            self._generator.__anext__().send(None)  # That makes it known to the loop.

    def now(self) -> None:
        """Do it now, unless it has been done."""
        with contextlib.suppress(StopIteration):
            self._generator.aclose().send(None)


async def _until_closed(then: Callable[[], None]) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        then()


async def made_for_all(making: asyncio.Future[R], ended: Callable[[], Exception]) -> R:
    """Wait for what several tasks wait for; those that are cancelled leave it to the others.

    Raises ``ended()`` if it was cancelled itself: no caller was.
    """
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if making.cancelled() and task and not task.cancelling():
            raise ended() from None
        raise
