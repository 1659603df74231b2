"""What belongs to one event loop each, and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Final, Generic, Protocol, TypeVar

from ..._platform.threads import running_loop


class OfLoop(Protocol):
    """Connections, for instance."""

    loop: asyncio.AbstractEventLoop

    def close(self) -> None:
        """End it. It must run in the loop."""


T = TypeVar("T", bound=OfLoop)


class ByLoop(Generic[T]):
    """The object that ``new`` makes for each event loop, when it is first needed there.

    A loop that no code refers to is collected, even if it was never closed, unless a task of it waits
    for a lock: the mailbox of that task keeps both. Connections refer to their loop, so nothing here may
    refer to them. The loop itself keeps them, in an attribute, and whatever is still open when both are
    collected closes its own socket.
    """

    def __init__(self, new: Callable[[], T]) -> None:
        self._new = new
        self._made: list[weakref.ref[T]] = []
        self.latest: Callable[[], T | None] = lambda: None
        """Returns what belongs to the loop that last asked."""

    def here(self) -> T:
        """Return what belongs to the loop that runs."""
        loop, latest = asyncio.get_running_loop(), self.latest()
        if latest and latest.loop is loop:  # As it is nearly always.
            return latest
        kept: weakref.WeakKeyDictionary[ByLoop[T], T] | None = getattr(loop, _KEPT, None)
        if kept is None:
            # After ``vars(loop)``, CPython would read all attributes of the loop more slowly.
            kept = weakref.WeakKeyDictionary()
            setattr(loop, _KEPT, kept)
        found = kept.get(self)
        if found is None:
            for made in list(self._made):
                if made() is None:
                    with contextlib.suppress(ValueError):  # Another thread has removed it.
                        self._made.remove(made)
            found = kept[self] = self._new()
            self._made.append(weakref.ref(found))
        self.latest = weakref.ref(found)
        return found

    def all(self) -> list[T]:
        """Return what there is of all loops that have not been closed."""
        found = [made() for made in list(self._made)]
        return [each for each in found if each and not each.loop.is_closed()]

    def close(self) -> None:
        """End everything, each in its own loop."""
        for each in self.all():
            getattr(each.loop, _KEPT).pop(self, None)
            if each.loop is running_loop():
                each.close()
            else:
                with contextlib.suppress(RuntimeError):  # The loop was closed just now.
                    each.loop.call_soon_threadsafe(each.close)


_KEPT: Final = "weblock_kept"
"""The attribute of an event loop that keeps what belongs to it."""


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
