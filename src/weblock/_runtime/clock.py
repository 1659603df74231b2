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
from typing import Any, Final, NamedTuple

from .._platform.internals import running_loop

_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))

now: Final[Callable[[], float]] = (
    time.monotonic if _CLOCK is None else partial(time.clock_gettime, _CLOCK)
)
"""Monotonic seconds since boot, the same in all processes of the machine.

Unlike ``CLOCK_MONOTONIC``, Linux's ``CLOCK_BOOTTIME`` goes on while the machine is suspended,
as the clock of an engine elsewhere does. (The monotonic clocks of macOS and Windows are used as they
are.)
"""


def new_owner() -> str:
    """Return a secret that nobody had before: 128 random bits."""
    return os.urandom(16).hex()  # What ``secrets.token_hex`` does, in half the calls.


def control() -> object:
    """Return the task that runs in this thread, or the event loop of a callback, or else the strand."""
    loop = running_loop()
    if loop:
        # Not the task itself, which would keep its result alive, perhaps a lease.
        return weakref.ref(asyncio.current_task(loop) or loop)
    strand, thread = _strand.get(), _this_thread.mark
    if strand is None or strand.thread is not thread:
        strand = Strand(thread, part_of.get())
        _strand.set(strand)
    return strand


def is_part_of(flow: object) -> bool:
    """Return whether the running code is that flow of control, or one of its tasks and threads."""
    part, found = part_of.get(), flow
    if isinstance(flow, Strand) and flow.thread is _this_thread.mark:
        found = flow.work  # The same thread and request, in another context.
    while part is not None and part is not found:
        part = part.within
    return part is not None or flow is control()


def runs_on_this_loop(flow: object) -> bool:
    """Return whether that flow of control goes on only if the event loop of this thread does."""
    loop = running_loop()
    where = flow.loop if isinstance(flow, Flow) else flow
    if loop is None or not isinstance(where, weakref.ref):
        return False
    found = where()
    if asyncio.isfuture(found):
        return found.get_loop() is loop and not found.done()
    return found is loop


def waits_for_this_loop(flow: object) -> bool:
    """Return whether that flow of control is this thread, where it goes on when the loop has ended."""
    # In whatever context: that of a coroutine from another thread is another one.
    in_this_thread = isinstance(flow, Strand) and flow.thread is _this_thread.mark
    return in_this_thread and running_loop() is not None


class Flow:
    """The work for one request, or for one part of it, in all its tasks and threads.

    A task may keep its context, and so a flow, for long: a flow keeps nothing else in memory.
    """

    # They are set from outside: an ``__init__`` would be one call more for each request.
    __slots__ = ("book", "loop", "within")

    book: weakref.ref[Any]
    """What keeps the leases of this work."""
    loop: weakref.ref[asyncio.AbstractEventLoop] | None
    """The event loop that the work begins on."""
    within: Flow | None
    """The work that this is a part of."""


part_of: Final[ContextVar[Flow | None]] = ContextVar("weblock_part_of", default=None)
"""The innermost flow that what runs in this context is a part of, with all that comes of it.

A request's tasks and threads are such parts: they cannot wait for what the request itself holds, but
each holds by itself what it has acquired for itself.
"""


class Strand(NamedTuple):
    """Blocking code of one thread, in one context and in the copies of it.

    A pool runs the parts of many requests in one thread, each in a copy of the context of its request. A
    part that waits there does not wait for itself, although an earlier part of that thread holds the
    key: another thread of the pool can release it.
    """

    thread: object
    work: Flow | None
    """The work of a request that it began in."""


_strand: Final[ContextVar[Strand | None]] = ContextVar("weblock_strand", default=None)


class _ThisThread(threading.local):
    """A mark for each thread; its identifier would pass on to a later thread."""

    def __init__(self) -> None:
        self.mark = object()


_this_thread = _ThisThread()
