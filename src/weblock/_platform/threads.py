"""Background threads, which do not end before they should, and what they call of others."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty
from typing import Final

from .forks import heed_forks
from .logs import Repeats, logger

AGAIN_AFTER: Final = 0.1
"""Seconds after which a thread that failed goes on."""

LINGER: Final = 1.0
"""Seconds for which the thread of callbacks waits for another."""


class BackgroundThread:
    """A daemon thread that does ``work`` while that is wanted.

    ``work`` returns when it has nothing more to do. If it ends in any other way, by ``SystemExit``
    too, the failure is logged (ever more rarely if it goes on, see ``Repeats``) and it is called
    again: what depends on a thread that ended in silence fails much later, and elsewhere.
    """

    def __init__(
        self, name: str, work: Callable[[], None], wanted: Callable[[], bool] = lambda: False
    ) -> None:
        self._name = name
        self._work = work
        self._wanted = wanted
        self._failures = Repeats()
        self._thread: threading.Thread | None = None
        self._turn = threading.Lock()

    @property
    def running(self) -> bool:
        return self._turn.locked()

    def start(self) -> bool:
        """Starts the thread unless it runs. Whether it runs: the next call tries again.

        It may be called by any number of threads, and interrupted anywhere: of several threads that
        were started, one runs, for that one has the turn.
        """
        if self._turn.locked():
            return True
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:
            if times := self._failures.count():
                logger.exception(
                    "the thread %s could not be started (failure %d in a row)", self._name, times
                )
            return False
        return True

    @property
    def is_current(self) -> bool:
        """Return whether the caller runs in this thread."""
        return self._thread is threading.current_thread()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended; not in the thread itself, where a callback may call this.

        Nor while the interpreter ends: daemon threads have stopped for good by then. What is
        collected last, such as a generator that holds locks, would keep the process from ending.
        """
        if sys.is_finalizing():
            return
        thread = self._thread
        if thread and thread.ident and thread is not threading.current_thread():
            thread.join(timeout)

    def _run(self) -> None:
        over = False
        try:
            # Who wanted something just before the turn was free has not started another thread.
            while self._take_turn() and self._wanted():
                pass
            over = True
        finally:
            if not over:
                self.start()

    def _take_turn(self) -> bool:
        """Run the work to its end, unless another thread runs it."""
        turn, taken = self._turn, list[bool]()
        try:
            taken += map(turn.acquire, (False,))  # See ``turns``: a greenlet may be interrupted.
            if taken == [False]:
                return False
            self._thread = threading.current_thread()
            self._until_done()
        finally:
            if taken == [True]:
                turn.release()
        return True

    def _until_done(self) -> None:
        while True:
            try:
                return self._work()
            except BaseException:
                if times := self._failures.count():
                    logger.critical(
                        "the thread %s failed, and is being restarted (failure %d in a row)",
                        self._name,
                        times,
                        exc_info=True,
                    )
                time.sleep(AGAIN_AFTER)


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
