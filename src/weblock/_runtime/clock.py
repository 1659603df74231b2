"""The clock, and what else both runtimes take from the machine."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Final

from .internals import running_loop


def _clock() -> Callable[[], float]:
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        if hasattr(time, name):
            return partial(time.clock_gettime, getattr(time, name))
    return time.monotonic  # Windows has no other.


now: Final[Callable[[], float]] = _clock()
"""Monotonic seconds since boot, the same in all processes of the machine.

Unlike ``CLOCK_MONOTONIC``, Linux's ``CLOCK_BOOTTIME`` goes on while the machine is suspended,
as the clock of an engine elsewhere does. (The monotonic clocks of macOS and Windows are used as they
are.)
"""


def new_owner() -> str:
    """Return a secret that nobody had before: 128 random bits."""
    return os.urandom(16).hex()  # What ``secrets.token_hex`` does, in half the calls.


def control() -> object:
    """Return the task that runs in this thread, or the event loop of a callback, or else the thread."""
    loop = running_loop()
    # Not the task itself, which would keep its result alive, perhaps a lease.
    return weakref.ref(asyncio.current_task(loop) or loop) if loop else _this_thread.mark


def is_part_of(flow: object) -> bool:
    """Return whether the running code is that flow of control, or one of its tasks and threads."""
    return flow is part_of.get() or flow is control()


def runs_on_this_loop(flow: object) -> bool:
    """Return whether that flow of control goes on only if the event loop of this thread does."""
    loop = running_loop()
    if loop is None or not isinstance(flow, weakref.ref):
        return False
    found = flow()
    if asyncio.isfuture(found):
        return found.get_loop() is loop and not found.done()
    return found is loop


def waits_for_this_loop(flow: object) -> bool:
    """Return whether that flow of control is this thread, where it goes on when the loop has ended."""
    return flow is _this_thread.mark and running_loop() is not None


class FlowOfLoop(weakref.ref[asyncio.AbstractEventLoop]):
    """The flow of control of several tasks of an event loop, such as those of a request.

    No two are the same. It is weak, for a task may keep it in its context for longer than the loop lives.
    """

    __slots__ = ()


part_of: Final[ContextVar[object | None]] = ContextVar("weblock_part_of", default=None)
"""The whole that what runs in this context is a part of, with all that comes of it.

A request's tasks and threads are such parts: they cannot wait for what the request itself holds, but
each holds by itself what it has acquired for itself.
"""


class _ThisThread(threading.local):
    """A mark for each thread; its identifier would pass on to a later thread."""

    def __init__(self) -> None:
        self.mark = object()


_this_thread = _ThisThread()
