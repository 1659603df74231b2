"""Threads, greenlets and event loops, and what the garbage collector ends.

**Threads.** A background thread does not end before it should (``BackgroundThread``), and an event loop
leaves to threads what it should not wait for.

**Greenlets.** gevent and eventlet replace the standard library's threads, locks and queues by their own.
weblock uses these under their usual names, so every thread of its own is a greenlet there, the keeper
included. Greenlets take turns only while they wait. Two things follow:

- A handler that computes for longer than its ttl loses its lease, because nothing renews it meanwhile.
  ``NotRenewed`` says so when locks are made.
- What greenlets share belongs to the event loop (gevent's hub) of one real thread. A call from another
  one, such as a thread of gevent's threadpool, could wait for ever, and is rejected.

**Garbage.** The collector may run at any allocation, and so in a thread that has a mutex, or is asking an
engine. There it calls finalizers: it ends a generator that holds a lease or has locks open, and calls what
an application does in ``__del__``. To release a lease or to close locks takes mutexes and asks an engine,
for which that thread might wait for itself. So both begin like this, and go on in another thread:

    if [*phases][-1] == "start" and runs_here():
        return end_later(self._do_it)

Whatever loses its last reference elsewhere ends at once, in the line that drops it.

Python calls what is in ``gc.callbacks`` when the collector begins and ends, and drops the exceptions that
are raised there. In a Python function, that could be the exception of a signal handler, such as
``KeyboardInterrupt``. So the callbacks are methods that are written in C, which no signal interrupts. Each
gets the phase, ``"start"`` or ``"stop"``, and a new dictionary.
"""

from __future__ import annotations

import _thread
import asyncio
import gc
import importlib
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, Final, TypeVar

from ..errors import ConfigurationError
from .forks import reset_after_fork
from .logs import Repeats, logger

R = TypeVar("R")

_PATCHERS: Final = {
    "gevent": ("gevent.monkey", "is_module_patched", "threading"),
    "eventlet": ("eventlet.patcher", "is_monkey_patched", "thread"),
}
"""Where each library says whether it has replaced the threads of this process."""


def patched_by() -> str | None:
    """Return the library that has made the threads of this process greenlets, or ``None``."""
    for library, (module, function, argument) in _PATCHERS.items():
        patcher = sys.modules.get(module)
        if patcher is not None and getattr(patcher, function)(argument):
            return library
    return None


class _FirstThread:
    """The real thread whose greenlets lock, which is the first one that does."""

    def __init__(self) -> None:
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        self.hub: Any = None


_first: Final = _FirstThread()


def refuse_other_threads() -> None:
    """Raise ``ConfigurationError`` under gevent, unless this real thread is the first that comes here."""
    hub = importlib.import_module("gevent").get_hub()
    if _first.hub is None:
        _first.hub = hub
    if hub is not _first.hub:
        raise ConfigurationError(
            "this thread does not run the greenlets that use weblock's locks: it might belong to"
            " gevent's threadpool. Acquire and release in a greenlet, and run only the work in the"
            " threadpool",
            code="wrong_thread",
        )


# All private names of asyncio that weblock uses: ``tests/test_private_names.py`` notices when one goes away.


def _by_public_name() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_of_thread: Final[Callable[[], Any]] = getattr(asyncio, "_get_running_loop", _by_public_name)


def _of_greenlet() -> Any:
    # asyncio knows one running loop for each real thread, whichever greenlet of it asks.
    loop, here = _of_thread(), threading.get_ident()
    return loop if getattr(loop, "_thread_id", here) == here else None


running_loop: Final[Callable[[], asyncio.AbstractEventLoop | None]] = (
    _of_greenlet if patched_by() else _of_thread
)
"""Returns the event loop that runs in this thread or greenlet, or ``None``.

Outside a loop the public function raises, which takes several times as long, and the blocking API asks often.
"""


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
            f"weblock cannot be used in this subinterpreter ({error}): it renews leases in a"
            " thread. Use it in the main interpreter, and run the work in threads or processes"
            " instead",
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
                    "the thread %s could not be started (failure %d in a row)"
                    " [weblock.thread_failed]",
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
            # See ``transport.pool.turns``: a greenlet may be interrupted.
            taken += map(turn.acquire, (False,))
            if taken == [False]:
                return False
            self._thread = threading.current_thread()
            while True:
                try:
                    self._work()
                except BaseException:
                    if times := self._failures.count():
                        logger.critical(
                            "the thread %s failed and is restarted (failure %d in a row)"
                            " [weblock.thread_failed]",
                            self._name,
                            times,
                            exc_info=True,
                        )
                    time.sleep(AGAIN_AFTER)
                else:
                    return True
        finally:
            if taken == [True]:
                turn.release()


def in_thread(executor: Executor | None, work: Callable[[], R]) -> asyncio.Future[R]:
    """Run work in a thread of an executor, of which ``None`` is the loop's own.

    Raises ``RuntimeError`` if no thread can be started. Then it is not run: the executor has queued
    it all the same, and would run it when it gets a thread.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[R] = loop.create_future()
    unbegun = [outcome]

    def run() -> None:
        try:
            mine = unbegun.pop()
        except IndexError:
            return
        if mine.cancelled():
            return
        try:
            settle = partial(mine.set_result, work())
        except BaseException as error:  # noqa: BLE001 - raised in the loop
            settle = partial(mine.set_exception, error)
        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(_settle, mine, settle)
        # The frames of an error lead to this one. A cycle would keep all frames of its caller, too.
        del mine, settle

    try:
        loop.run_in_executor(executor, run)
    except RuntimeError:
        with suppress(IndexError):  # Where a thread that was there has begun it just now.
            unbegun.pop()
            raise
    return outcome


def _settle(outcome: asyncio.Future[Any], settle: Callable[[], object]) -> None:
    if not outcome.done():
        settle()


async def beside_loop(work: Callable[[], object]) -> None:
    """Do in a thread what the loop should not wait for; where none can be started, do it here."""
    try:
        done = in_thread(None, work)
    except RuntimeError:
        work()
    else:
        await done


phases: Final = OrderedDict.fromkeys(("start", "stop"))
"""The last one is the phase that came last: ``"start"`` while the collector runs in any thread.

Copy it to read it: the collector may run before any instruction, and an iterator would fail then.
"""

_begun: Final[dict[str, object]] = {}
# gevent's own ``local`` cannot be used in a greenlet that is being finalized. This one knows real threads only.
_here: Final = (
    importlib.import_module("gevent.monkey").get_original("threading", "local")()
    if patched_by() == "gevent"
    else threading.local()
)

_callbacks: list[Any] = gc.callbacks
_callbacks += (phases.move_to_end, _begun.__setitem__, _here.__setattr__)


def runs_here() -> bool:
    # While the interpreter ends, no other thread runs any more. A child of another thread has none that runs.
    return getattr(_here, "start", None) is _begun["start"] and not sys.is_finalizing()


def end_later(work: Callable[[], object]) -> None:
    """Do ``work`` in a thread, without waiting for anything: neither for the work nor for the thread.

    The start of a thread needs a mutex of ``threading``, so it is started by another one.
    """
    thread = background_thread(work, "weblock-collected")
    with suppress(RuntimeError):  # The machine has no more threads. Leases then end at their ttl.
        _thread.start_new_thread(thread.start, ())
