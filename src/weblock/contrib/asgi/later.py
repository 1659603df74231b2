"""Timers that cost little to set and to cancel, for nearly all of them are cancelled.

An event loop keeps its own in order, which every request would pay for. These are in no order, and
are looked through now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakKeyDictionary

TICK: Final = 0.05
"""Seconds by which a call may come late."""


class Later(Protocol):
    """A call to come."""

    def cancel(self) -> None:
        """Has it not come. Does nothing where it has."""


def call_later(seconds: float, call: Callable[[], None]) -> Later:
    """Calls ``call`` in the running event loop after so many seconds, or up to ``TICK`` more."""
    loop = asyncio.get_running_loop()
    if seconds < TICK:
        return loop.call_later(seconds, call)
    clock = _clocks.get(loop) or _clocks.setdefault(loop, _Clock())
    later = _Later(clock, loop.time() + seconds, call)
    clock.add(later, loop)
    return later


class _Later:
    __slots__ = ("_clock", "call", "due")

    def __init__(self, clock: _Clock, due: float, call: Callable[[], None]) -> None:
        self._clock = clock
        self.due = due
        self.call = call

    def cancel(self) -> None:
        self._clock.pending.discard(self)
        self.call = _nothing  # Who set it has it: together they would be a cycle.


def _nothing() -> None: ...


class _Clock:
    """That of one event loop. It ticks for as long as something is pending."""

    __slots__ = ("_ticks", "pending")

    def __init__(self) -> None:
        self.pending: set[_Later] = set()
        self._ticks = False

    def add(self, later: _Later, loop: asyncio.AbstractEventLoop) -> None:
        self.pending.add(later)
        if not self._ticks:
            self._ticks = True
            loop.call_later(TICK, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ticks = bool(self.pending)
        if self._ticks:
            loop.call_later(TICK, self._tick, loop)
        now = loop.time()
        for later in [each for each in self.pending if each.due <= now]:
            if later in self.pending:  # One that came before it may have cancelled it.
                call = later.call
                later.cancel()
                call()


_clocks: WeakKeyDictionary[asyncio.AbstractEventLoop, _Clock] = WeakKeyDictionary()
