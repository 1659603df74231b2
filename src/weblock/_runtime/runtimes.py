"""How time passes and how code waits: on asyncio, and blocking, where the keeper runs, too."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import random
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from queue import Empty
from typing import Any, Final, NamedTuple, TypeVar

from .._core.keeping import Keeper
from .._core.ports import Engine, Message
from .._platform.logs import logger
from .._platform.threads import BackgroundThread, patched_by, refuse_other_threads, running_loop
from ..errors import ConfigurationError

T = TypeVar("T")

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


class _Machine:
    """What both runtimes take from the machine."""

    now = staticmethod(now)
    jitter = staticmethod(random.random)
    new_owner = staticmethod(new_owner)
    control = staticmethod(control)
    is_part_of = staticmethod(is_part_of)


class AsyncioMailbox:
    """A queue whose listener is a task of one loop, and whose senders are anywhere."""

    __slots__ = ("_listener", "_loop", "_messages")

    def __init__(self) -> None:
        self._loop = running_loop()
        self._messages: list[Message] = []  # One is the most that there is, but for rare cases.
        self._listener: asyncio.Future[None] | None = None

    @property
    def deaf(self) -> bool:
        return self._loop is not None and self._loop.is_closed()

    def put(self, message: Message) -> None:
        self._messages.append(message)
        listener = self._listener
        if listener is None:
            return  # It will look at the messages before it waits.
        loop = listener.get_loop()
        if running_loop() is loop:
            self._wake()
            return
        try:
            loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            pass  # The loop is closed, and its waiters with it.

    async def heard(self, timeout: float | None) -> Message | None:
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        while not self._messages:
            left = None if until is None else until - loop.time()
            if left is not None and left <= 0:
                return None
            self._listener = listener = loop.create_future()
            timer = None if left is None else loop.call_later(left, self._wake)
            try:
                # A thread may have filled the queue between the look and the future.
                if not self._messages:
                    await listener
            finally:
                self._listener = None
                if timer:
                    timer.cancel()
        return self._messages.pop(0)

    def _wake(self) -> None:
        if self._listener and not self._listener.done():
            self._listener.set_result(None)


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Call a function in an event loop, from any thread; not if the loop is closed."""
    with contextlib.suppress(RuntimeError):  # The loop is closed.
        loop.call_soon_threadsafe(callback)


def in_running_loop(callback: Callable[[], None]) -> Callable[[], None]:
    """Return a function that any thread may call, and that calls ``callback`` in this loop."""
    return partial(call_in, asyncio.get_running_loop(), callback)


class AsyncioRuntime(_Machine):
    suspends = True
    renews = False
    mailbox = AsyncioMailbox
    holds_up = staticmethod(waits_for_this_loop)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the blocking API to its end, in one step.

    The idea is that of gel-python's ``iter_coroutine``. One that suspends is a bug, and raises.
    """
    if _in_one_thread:
        try:
            refuse_other_threads()
        except ConfigurationError:
            work.close()
            raise
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise RuntimeError("a coroutine suspended in the blocking runtime")


_in_one_thread = False
"""Whether threads are greenlets: then all of them that lock anything belong to one real thread."""


class BlockingMailbox:
    """A queue, which no signal can interrupt: a finalizer may put a message into it."""

    __slots__ = ("_messages", "put")

    deaf = False

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.put: Callable[[Message], None] = self._messages.put

    async def heard(self, timeout: float | None) -> Message | None:
        if timeout is not None:
            timeout = min(max(0.0, timeout), threading.TIMEOUT_MAX)
        try:
            return self._messages.get(timeout=timeout)
        except Empty:
            return None


class BlockingRuntime(_Machine):
    suspends = False
    mailbox = BlockingMailbox

    def __init__(self, *, renews: bool = False) -> None:
        self.renews = renews
        if patched_by() == "gevent":
            global _in_one_thread  # noqa: PLW0603 - not before locks are made is it known
            _in_one_thread = True
            refuse_other_threads()

    def holds_up(self, flow: object) -> bool:
        # Where blocking code runs on an event loop, whatever waits in one task stops all of them.
        return waits_for_this_loop(flow) or runs_on_this_loop(flow)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class KeeperThread:
    """Runs one engine's keeper in a daemon thread, from when it is first needed."""

    def __init__(self, engine: Engine) -> None:
        self._thread = BackgroundThread("weblock-keeper", lambda: drive(self.keeper.run()))
        self.keeper = Keeper(
            BlockingRuntime(renews=True),
            engine.connect,
            self._thread.start,
            report_forgotten=_warn_of_forgotten,
            disconnect=engine.switchboard.disconnect,
        )

    def close(self, timeout: float = 5.0) -> None:
        """End the thread, and wait for that at most ``timeout`` seconds.

        Pending releases come first, if the engine answers in that time.
        """
        self.keeper.close()
        self._thread.join(timeout)


def _warn_of_forgotten(message: str) -> None:
    try:
        warnings.warn(message, ResourceWarning, stacklevel=1)
    except ResourceWarning:  # Where warnings are errors: nobody could catch it here.
        logger.error(message)  # noqa: TRY400
