"""The blocking runtime: every port method blocks, so that coroutines never suspend."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Coroutine
from queue import Empty
from typing import Any, TypeVar

from .._core.ports import Bell, Message
from .._platform.greenlets import patched_by, refuse_other_threads
from ..errors import ConfigurationError
from . import clock

T = TypeVar("T")


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the blocking face to its end, in one step.

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


class BlockingRuntime:
    suspends = False
    now = staticmethod(clock.now)
    jitter = staticmethod(random.random)
    new_owner = staticmethod(clock.new_owner)
    control = staticmethod(clock.control)
    is_part_of = staticmethod(clock.is_part_of)

    def __init__(self, *, renews: bool = False) -> None:
        self.renews = renews
        if patched_by() == "gevent":
            global _in_one_thread  # noqa: PLW0603 - not before locks are made is it known
            _in_one_thread = True
            refuse_other_threads()

    def bell(self) -> Bell:
        return BlockingBell(queue.SimpleQueue())

    def holds_up(self, flow: object) -> bool:
        # Where blocking code runs on an event loop, whatever waits in one task stops all of them.
        return clock.waits_for_this_loop(flow) or clock.runs_on_this_loop(flow)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class BlockingBell:
    """A queue, which no signal can interrupt: it may be rung by what is called of a dying object."""

    __slots__ = ("_messages", "ring")

    deaf = False

    def __init__(self, messages: queue.SimpleQueue[Message]) -> None:
        self._messages = messages
        self.ring: Callable[[Message], None] = messages.put

    async def heard(self, timeout: float | None) -> Message | None:
        if timeout is not None:
            timeout = min(max(0.0, timeout), threading.TIMEOUT_MAX)
        try:
            return self._messages.get(timeout=timeout)
        except Empty:
            return None
