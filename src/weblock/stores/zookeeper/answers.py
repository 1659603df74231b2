"""Results of kazoo's requests, for which a thread waits without locking them.

kazoo's own results are guarded by a ``threading.Condition``, which is written in Python. An exception
that a signal handler raises inside of it leaves it locked for good, and then the thread that receives
all answers waits for ever. Here the lock is entered and left in C, and a thread waits on a queue of
its own.
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import Any

from kazoo.handlers import utils
from kazoo.handlers.threading import SequentialThreadingHandler

from ..transport.turns import taken_out

_RLock: Any = type(threading.RLock())


class _Condition(_RLock):  # type: ignore[misc]
    """What kazoo uses of a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[queue.SimpleQueue[None]] = []

    def wait(self, timeout: float | None = None) -> None:
        arrived: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.waiting.append(arrived)
        self.release()
        try:
            with suppress(queue.Empty):
                arrived.get(True, timeout)
        finally:
            self.acquire()

    def notify_all(self) -> None:
        for arrived in taken_out(self.waiting):
            arrived.put(None)


class AsyncResult(utils.AsyncResult):  # type: ignore[misc]
    """The result of one request, or why there is none."""

    def __init__(self, handler: Handler) -> None:
        condition = _Condition()
        self._waiting = condition.waiting
        super().__init__(handler, lambda: condition, handler.timeout_exception)

    def wait_for(self, timeout: float) -> Any:
        """Return the result. Raises kazoo's errors."""
        if not self.ready():
            arrived: queue.SimpleQueue[None] = queue.SimpleQueue()
            self._waiting.append(arrived)
            if not self.ready():  # Else it may have arrived before we were in the list.
                try:
                    arrived.get(True, max(0.0, timeout))
                except queue.Empty:
                    with suppress(ValueError):
                        self._waiting.remove(arrived)
        return self.get(block=False)


class _Queue(queue.SimpleQueue[Any]):
    """A queue of callbacks. kazoo tells it of each that is done, and never waits for that."""

    def task_done(self) -> None:
        """Do nothing."""


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler with the results and queues of this module."""

    queue_impl = _Queue

    def async_result(self) -> AsyncResult:
        return AsyncResult(self)
