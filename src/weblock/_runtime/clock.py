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
    """Return the task that runs in this thread, or else the thread."""
    loop = running_loop()
    task = asyncio.current_task(loop) if loop else None
    # Not the task itself, which would keep its result alive, perhaps a lease.
    return weakref.ref(task) if task else _this_thread.mark


def is_part_of(flow: object) -> bool:
    """Return whether the running code is that flow of control, or one of its tasks and threads."""
    return flow is part_of.get() or flow is control()


def is_task_here(flow: object) -> bool:
    """Return whether that flow of control is a task of the event loop that this thread runs."""
    loop = running_loop()
    task = flow() if loop and isinstance(flow, weakref.ref) else None
    return task is not None and task.get_loop() is loop


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
