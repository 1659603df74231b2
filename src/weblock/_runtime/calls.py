"""Calls of functions that others have given us, in threads of their own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from queue import Empty
from typing import Final

from .._platform.forks import heed_forks
from .._platform.logs import logger
from .._platform.threads import BackgroundThread

LINGER: Final = 1.0
"""Seconds for which the thread of callbacks waits for another."""


class CallQueue:
    """Calls what others have given us to call, in a thread where it can hold up nobody but itself.

    One after the other: those that take long are late for each other, never for a lease. No more
    than ``most`` wait for their turn.
    """

    def __init__(self, name: str, *, most: int | None = None) -> None:
        self._name = name
        self._most = most
        self.after_fork()
        heed_forks(self)

    def after_fork(self) -> None:
        """Drop the queue in a forked child: the calls are made in the parent."""
        self._made: list[queue.SimpleQueue[Callable[[], object]]] = []
        self._thread = BackgroundThread(self._name, self._serve, lambda: not self._queue.empty())

    @property
    def _queue(self) -> queue.SimpleQueue[Callable[[], object]]:
        if not self._made:
            # Not before it is needed: until then, greenlets may replace threads.
            self._made.append(queue.SimpleQueue())
        return self._made[0]  # Of two that were made at the same time, all use the first.

    def call(self, callback: Callable[[], object]) -> bool:
        """Queue a function to be called soon, and return whether there was room for it.

        If no thread can be started, it is called here and now.
        """
        if self._most is not None and self._queue.qsize() >= self._most:
            return False
        self._queue.put(callback)
        if not self._thread.start():
            self._serve()
        return True

    def join(self, timeout: float) -> None:
        """Wait until what was given so far has been called, at most ``timeout`` seconds."""
        if self._thread.running and not self._thread.is_current:
            done = threading.Event()
            self.call(done.set)
            done.wait(timeout)

    def _serve(self) -> None:
        while True:
            try:
                callback = self._queue.get(timeout=LINGER if self._thread.running else 0)
            except Empty:
                return
            try:
                callback()
            except BaseException:
                logger.exception("a callback failed in the thread %s", self._name)


callbacks: Final = CallQueue("weblock-callbacks")
"""Those for leases that were lost."""
