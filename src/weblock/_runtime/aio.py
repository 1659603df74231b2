"""The asyncio runtime."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from functools import partial

from .._core.ports import Message
from .._platform.internals import running_loop
from . import clock


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


class AsyncioRuntime:
    suspends = True
    renews = False
    mailbox = AsyncioMailbox
    now = staticmethod(clock.now)
    jitter = staticmethod(random.random)
    new_owner = staticmethod(clock.new_owner)
    control = staticmethod(clock.control)
    is_part_of = staticmethod(clock.is_part_of)
    holds_up = staticmethod(clock.waits_for_this_loop)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
