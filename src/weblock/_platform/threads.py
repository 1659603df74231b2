"""Background threads, which do not end before they should, and work that an event loop leaves to threads."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import Context
from typing import Any, Final, TypeVar

from ..errors import ConfigurationError
from .logs import Repeats, logger

R = TypeVar("R")

AGAIN_AFTER: Final = 0.1
"""Seconds after which a thread that failed goes on."""


def background_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Return a daemon thread that does ``work``, not yet started.

    Its context is empty. Where threads inherit the context of the code that starts them, as they can from
    Python 3.14 on, it would have what a request has set, such as the request's id for logs, and keep it alive.
    """
    own: dict[str, Any] = {"context": Context()} if sys.version_info >= (3, 14) else {}
    return threading.Thread(target=work, name=name, daemon=True, **own)


def refuse_subinterpreter() -> None:
    """Raise ``ConfigurationError`` where Python allows no daemon threads, as in an isolated subinterpreter."""
    try:
        background_thread(refuse_subinterpreter, "weblock-never")
    except RuntimeError as error:
        raise ConfigurationError(
            f"weblock cannot be used in this subinterpreter ({error}): it renews leases in a thread. Use it"
            " in the main interpreter, and run the work in threads or processes instead",
            code="wrong_thread",
        ) from error


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
        thread = background_thread(self._run, self._name)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:
            if times := self._failures.count():
                logger.exception(
                    "the thread %s could not be started (failure %d in a row) [weblock.thread_failed]",
                    self._name,
                    times,
                )
            return False
        return True

    @property
    def is_current(self) -> bool:
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
        turn, taken = self._turn, list[bool]()
        try:
            taken += map(
                turn.acquire, (False,)
            )  # See ``transport.pool.turns``: a greenlet may be interrupted.
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
                        "the thread %s failed and is restarted (failure %d in a row) [weblock.thread_failed]",
                        self._name,
                        times,
                        exc_info=True,
                    )
                time.sleep(AGAIN_AFTER)


def in_thread(executor: Executor | None, work: Callable[[], R]) -> asyncio.Future[R]:
    """Run work in a thread of an executor, of which ``None`` is the loop's own.

    Raises ``RuntimeError`` if no thread can be started. Then it is not run: the executor has queued
    it all the same, and would run it when it gets a thread.
    """
    outcome: Future[R] = Future()

    def run() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised in the loop
            outcome.set_exception(error)

    loop = asyncio.get_running_loop()
    try:
        loop.run_in_executor(executor, run)
    except RuntimeError:
        if outcome.cancel():  # Else a thread that was there has begun it just now.
            raise
    return asyncio.wrap_future(outcome, loop=loop)


async def beside_loop(work: Callable[[], object]) -> None:
    """Do in a thread what the loop should not wait for; where none can be started, do it here."""
    try:
        done = in_thread(None, work)
    except RuntimeError:
        work()
    else:
        await done
