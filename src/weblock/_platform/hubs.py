"""Real threads under gevent, and queues between them and greenlets.

Where gevent has replaced threads by greenlets, a thread that renews leases must be a real one: a
greenlet does not run while another computes. Such a thread has an event loop (a hub) of its own, so
all that gevent has patched works in it as it does anywhere else: sockets, ``sleep``, ``select``.
Two threads must share none of these. They share locks that nobody holds while waiting, which are
the original ones, and the queues of this module.

Only ``greenlets`` imports this module, and only where gevent has patched this process.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from queue import Empty
from typing import Any, Final, Generic, TypeVar

import gevent
from gevent import monkey
from gevent.event import Event
from gevent.pool import Group

from .forks import heed_forks

T = TypeVar("T")

_get_ident: Callable[[], int] = monkey.get_original("threading", "get_ident")
_start_new_thread: Callable[..., int] = monkey.get_original("_thread", "start_new_thread")

_A_WHILE: Final = 3600.0

_PATIENCE: Final = 1.0
"""Seconds for which the end of the process waits for a thread."""


class HubQueue(Generic[T]):
    """A queue like ``queue.SimpleQueue``, for one greenlet that gets and any thread that puts.

    gevent's own queue belongs to the greenlets of one thread.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._getter: tuple[Any, Event] | None = None

    def put(self, item: T) -> None:
        """Append an item, and wake the greenlet that waits for one. Never switches greenlets."""
        self._items.append(item)
        if getter := self._getter:
            loop, event = getter
            try:
                loop.run_callback_threadsafe(event.set)
            except ValueError:
                pass  # The getter's thread has ended just now.

    def get(self, timeout: float | None = None) -> T:
        """Return the next item, or raise ``queue.Empty`` after ``timeout`` seconds."""
        with gevent.Timeout(timeout, exception=False):
            while not self._items:
                self._wait()
        try:
            return self._items.popleft()
        except IndexError:
            raise Empty from None

    def empty(self) -> bool:
        """Return whether there is no item."""
        return not self._items

    def qsize(self) -> int:
        """Return the number of items."""
        return len(self._items)

    def _wait(self) -> None:
        event = Event()
        self._getter = (gevent.get_hub().loop, event)
        try:
            # A thread may have put an item between the look and the event.
            if not self._items:
                # With a timer: a hub that waits for other threads alone takes that for a deadlock.
                event.wait(_A_WHILE)
        finally:
            self._getter = None


class RealThread:
    """A daemon thread of the operating system, with a hub of its own."""

    def __init__(self, name: str, target: Callable[[], None]) -> None:
        self.name = name
        self.ident: int | None = None
        starter = running_here()
        self.home: Any = starter.home if starter else gevent.get_hub()
        """The hub of the greenlets for which it is there."""
        self._target = target
        self._joining: list[HubQueue[None]] = []
        self._over = False
        self._here: tuple[Any, Any] | None = None
        self.last_works: set[Callable[[], None]] = set()
        """What it does at its end: connections that were made in it are closed in it."""
        self.helpers = Group()
        """Its greenlets, which end with it."""
        self.ending = False
        """Whether the process ends, and this thread has to end before it."""

    def start(self) -> None:
        """Start the thread. Raises ``RuntimeError`` if there can be no more threads."""
        self.ident = _start_new_thread(self._run, ())

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended; other greenlets run meanwhile."""
        if self is running_here():
            return
        ended: HubQueue[None] = HubQueue()
        self._joining.append(ended)
        if not self._over:
            try:
                ended.get(timeout)
            except Empty:
                pass

    def end(self) -> None:
        """Raise ``SystemExit`` in it, where it waits. Its work must not go on after that: see ``ending``."""
        self.ending = True
        if here := self._here:
            loop, root = here
            loop.run_callback_threadsafe(root.throw, SystemExit)

    def do_at_home(self, work: Callable[[], object]) -> None:
        """Run ``work`` in a greenlet of the thread that started this one."""
        self.home.loop.run_callback_threadsafe(gevent.spawn, work)

    def _run(self) -> None:
        hub, ident = gevent.get_hub(), _get_ident()
        hub.name = self.name
        _real[ident] = self
        self._here = hub.loop, gevent.getcurrent()
        try:
            if not self.ending:
                self._target()
        except SystemExit:
            pass
        finally:
            self._here = None
            self._leave()
            del _real[ident]
            hub.destroy(destroy_loop=True)
            self._over = True
            for ended in tuple(self._joining):
                ended.put(None)

    def _leave(self) -> None:
        with suppress(SystemExit), ExitStack() as works:
            works.callback(gevent.sleep, 0)  # For what is put off to the next turn of the hub.
            for work in self.last_works:
                works.callback(work)
            works.callback(self.helpers.kill, timeout=_PATIENCE)


class Helper:
    """What is a thread elsewhere: a greenlet of a real thread, which ends with it."""

    def __init__(self, owner: RealThread, target: Callable[[], None]) -> None:
        self._owner = owner
        self._greenlet: Any = gevent.Greenlet(target)

    @property
    def ident(self) -> int | None:
        return self._greenlet.minimal_ident if self._greenlet.started else None

    def start(self) -> None:
        self._owner.helpers.start(self._greenlet)

    def join(self, timeout: float | None = None) -> None:
        self._greenlet.join(timeout)


class _RealThreads(dict[int, RealThread]):
    """The real threads that run, by identifier."""

    def after_fork(self) -> None:
        """Forget them in a forked child: they run in the parent."""
        self.clear()


_real = _RealThreads()
heed_forks(_real)


@atexit.register
def _end_all() -> None:
    """End all real threads before the interpreter ends.

    It ends daemon threads where they next need it, which crashes the process if that is inside a hub.
    """
    running = tuple(_real.values())
    for each in running:
        each.end()
    for each in running:
        each.join(_PATIENCE)


def running_here() -> RealThread | None:
    """Return the real thread that runs this, or ``None`` in any other thread."""
    return _real.get(_get_ident())
