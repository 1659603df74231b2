"""The blocking runtime: every port method blocks, so that coroutines never suspend."""

from __future__ import annotations

import _thread
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from .._core.ports import Bell, Message
from . import clock
from .crowd import Crowd

T = TypeVar("T")


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine of the blocking world to its end, with one step.

    The idea is that of gel-python's ``iter_coroutine``. One that suspends is a bug, and raises.
    """
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    work.close()
    raise RuntimeError("a coroutine suspended in the blocking runtime")


class BlockingRuntime:
    suspends = False
    now = staticmethod(clock.now)
    jitter = staticmethod(random.random)
    new_owner = staticmethod(clock.new_owner)
    control = staticmethod(clock.control)
    is_part_of = staticmethod(clock.is_part_of)

    def bell(self) -> Bell:
        return BlockingBell()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def side_by_side(
        self, works: Sequence[Coroutine[Any, Any, None]], enough: Callable[[], bool]
    ) -> None:
        began = clock.now()
        crowd = Crowd(works)
        crowd.run(enough)
        if not crowd.over:
            # Most are nearly done. For the others, their caller does not wait.
            crowd.run(_never, until=2 * clock.now() - began)
        if not crowd.over:
            rest = threading.Thread(target=crowd.run, args=(_never,), daemon=True)
            rest.name = "weblock-late-answers"
            rest.start()


def _never() -> bool:
    return False


class BlockingBell:
    """A queue and a lock that is free while there may be something in it.

    A bare lock costs a tenth of a ``threading.Event``, and most bells are never rung.
    """

    __slots__ = ("_messages", "_signal")

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._signal = _thread.allocate_lock()
        self._signal.acquire()

    def ring(self, message: Message) -> None:
        self._messages.append(message)
        try:
            self._signal.release()
        except RuntimeError:
            pass  # It was rung already, and not heard yet.

    async def heard(self, timeout: float | None) -> Message | None:
        until = None if timeout is None else clock.now() + timeout
        while not self._messages:
            left = -1.0 if until is None else max(0.0, until - clock.now())
            if not self._signal.acquire(timeout=min(left, threading.TIMEOUT_MAX)):
                return self._messages.popleft() if self._messages else None
        return self._messages.popleft()
