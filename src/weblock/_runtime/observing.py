"""How functions of the application are called: observers and callbacks, which cannot harm what calls them."""

from __future__ import annotations

import inspect
import logging
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from logging import DEBUG
from queue import Empty
from typing import Any, Final

from .._core.reporting import Listener, Observers
from .._platform.forks import enter_child, getpid, process, reset_after_fork
from .._platform.logs import logger
from .._platform.threads import BackgroundThread
from ..errors import ConfigurationError
from ..events import EVENTS, Answered, Event
from . import event_log

MOST_UNTOLD: Final = 10_000
"""Events that wait for a slow observer; further ones are dropped."""

FLUSH: Final = 1.0
"""Seconds that closing a ``Locks`` waits for its observers to receive their events."""

LINGER: Final = 1.0
"""Seconds for which the thread of callbacks waits for another."""

_EVERY: Final = frozenset(EVENTS.values()) - {Answered}

LOGGER: Final = logging.getLogger("weblock")
ROOT: Final = logging.getLogger()
"""The two loggers whose levels say whether the log wants all that happens.

Comparing them for each request costs no call, which ``isEnabledFor`` would.
"""


class CallQueue:
    """Calls what others have given us to call, in a thread where it can hold up nobody but itself.

    One after the other: those that take long are late for each other, never for a lease. No more
    than ``most`` wait for their turn.
    """

    def __init__(self, name: str, *, most: int | None = None) -> None:
        self._name = name
        self._most = most
        self.after_fork()
        reset_after_fork(self)

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
                logger.exception(
                    "a callback failed in the thread %s [weblock.callback_failed]", self._name
                )


callbacks: Final = CallQueue("weblock-callbacks")
"""Those for leases that were lost."""


def in_background(callback: Callable[[], None]) -> Callable[[], object]:
    """Return a function that has ``callback`` called in the thread of callbacks."""
    return partial(callbacks.call, callback)


class Seldom:
    """Returns true at most once in a number of seconds."""

    __slots__ = ("_next", "_pause")

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._next = float("-inf")

    def due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._pause
        return True


class Observer:
    """A function that is called with events, and how.

    A bare function in ``observers=`` stands for ``Observer(function)``: it is called with every
    event, one after the other, in a background thread of its own. So it may be slow, and may wait.
    If more than 10000 events wait for it, further ones are dropped, with a warning.

    Args:
        only: Limits the events to some of the classes in ``weblock.events``. ``Answered``, of which
            there are several for each lease, has to be named here.
        when: Is asked at once whether to pass an event on, and must be as quick as ``immediate``
            functions.
        immediate: Calls the function at once, in the thread and the context where the event
            happens, as a tracer needs it. It must return within microseconds and never wait: the
            thread may be the one that renews leases.
        asleep: While it returns true, the observer gets no events and costs almost nothing. It is
            called ten times a second at most.

    An exception of any of these functions is logged and changes nothing: an event about which ``when`` fails is
    not passed on, and an observer whose ``asleep`` fails is awake.

    Raises:
        ConfigurationError: It cannot be called, is an async function, or names an unknown kind of
            event.
    """

    __slots__ = (
        "__weakref__",
        "_call",
        "_failures",
        "_queue",
        "_when",
        "asleep",
        "immediate",
        "listener",
        "only",
    )

    def __init__(
        self,
        call: Callable[[Event], object],
        *,
        only: Collection[type[Event]] = _EVERY,
        when: Callable[[Event], bool] = lambda _event: True,
        immediate: bool = False,
        asleep: Callable[[], bool] | None = None,
    ) -> None:
        if not callable(call):
            raise ConfigurationError(
                f"observer {call!r:.80} cannot be called: give a function that takes one event"
            )
        if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
            getattr(call, "__call__", None)  # noqa: B004 - an object's method may be async
        ):
            raise ConfigurationError(
                f"observer {call!r:.80} is async, and observers are called where no event loop runs: give a"
                " function, which can pass the event on with loop.call_soon_threadsafe"
            )
        named: Any = only
        kinds = tuple(named) if isinstance(named, Iterable) else (named,)
        for kind in kinds:
            if kind not in EVENTS.values():
                raise ConfigurationError(
                    f"only={kind!r:.80} is not a kind of event: give classes of weblock.events, as in"
                    " only=[weblock.events.Lost]"
                )
        self._call = call
        self.only = frozenset(kinds)
        self.immediate = immediate
        self._when = when
        self.asleep = None if asleep is None else partial(self._done, asleep)
        self._failures = Seldom(60.0)
        self._queue = None if immediate else CallQueue("weblock-observer", most=MOST_UNTOLD)
        self.listener: Listener = self._tell if immediate else self._tell_later

    def _tell(self, event: Event) -> None:
        if self._done(self._when, event):
            self._done(self._call, event)

    def _tell_later(self, event: Event) -> None:
        if not self._queue or not self._done(self._when, event):
            return
        if not self._queue.call(partial(self._done, self._call, event)) and _too_slow.due():
            logger.warning(
                "the observer %.200r is too slow: %d events wait for it, and new events are dropped"
                " [weblock.observer_slow]",
                self._call,
                MOST_UNTOLD,
            )

    def _done(self, work: Callable[..., object], *event: Event) -> bool:
        """Call a function of the application, and return whether it returned something true."""
        try:
            result = work(*event)
            return work is self._call or bool(result)
        except Exception:
            if self._failures.due():
                logger.exception("an observer failed: %.200r [weblock.callback_failed]", work)
            return False

    def flush(self, timeout: float) -> None:
        """Wait until it has received all events so far, at most ``timeout`` seconds."""
        if self._queue:
            self._queue.join(timeout)


_too_slow = Seldom(60.0)


class Audience(Observers):
    """The observers of one ``Locks``: its own, those of the whole process, and the log."""

    __slots__ = ("_looks", "_own", "level", "root_level", "sleepers")

    def __init__(
        self, engine: str, now: Callable[[], float], observers: Iterable[Observer]
    ) -> None:
        super().__init__(engine, now)
        self._own = tuple(observers)
        self.level = self.root_level = logging.NOTSET
        """The levels of ``LOGGER`` and ``ROOT`` at the last look."""
        self.sleepers: Sequence[Callable[[], bool]] = ()
        """Observers that want nothing yet."""
        self._looks = Seldom(0.1)
        _everywhere.join(self)

    def add(self, observer: Observer) -> Callable[[], None]:
        self._own = (*self._own, observer)
        self.refresh()

        def remove() -> None:
            self._own = tuple(each for each in self._own if each is not observer)
            self.refresh()

        return remove

    def refresh(self) -> None:
        """Recompute which observer wants which events."""
        self.level, self.root_level = LOGGER.level, ROOT.level
        debugs = (self.level or self.root_level) <= DEBUG
        wanted: dict[type[Event], list[Listener]] = {}
        logged = event_log.KINDS if debugs else event_log.RARE
        listeners: list[tuple[Collection[type[Event]], Listener]] = [(logged, event_log.write)]
        observers = (*_everywhere.observers, *self._own)
        self.sleepers = [each.asleep for each in observers if each.asleep and each.asleep()]
        listeners += [
            (each.only, each.listener) for each in observers if each.asleep not in self.sleepers
        ]
        for kinds, listener in listeners:
            for kind in kinds:
                wanted.setdefault(kind, []).append(listener)
        self.want(wanted)

    def some_wake(self) -> bool:
        return self._looks.due() and not all(asleep() for asleep in self.sleepers)

    def flush(self) -> None:
        for each in (*_everywhere.observers, *self._own):
            each.flush(FLUSH)


Change = Callable[[tuple[Observer, ...]], tuple[Observer, ...]]


class _Everywhere:
    """The observers of the whole process, and all objects that have events for them."""

    def __init__(self) -> None:
        self.observers: tuple[Observer, ...] = ()
        self._audiences: weakref.WeakSet[Audience] = weakref.WeakSet()
        self._changes: deque[Change] = deque()
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        self._guard = threading.Lock()

    def join(self, audience: Audience) -> None:
        """Tell an audience of the observers that there are, and of changes to them from now on."""
        with self._guard:
            self._audiences.add(audience)
            audience.refresh()
        self._catch_up()

    def change(self, change: Change) -> None:
        """Change the observers, or let the thread that is changing them make this change, too.

        It never waits, for a finalizer may call it at any allocation, also of a thread that is in the
        middle of a change itself.
        """
        self._changes.append(change)
        self._catch_up()

    def settle(self) -> None:
        with self._guard:
            pass
        self._catch_up()

    def _catch_up(self) -> None:
        # Looked at again after each turn: a thread that came meanwhile has left its change to us.
        while self._changes:
            taken: list[bool] = []
            try:
                taken += map(self._guard.acquire, (False,))  # See ``transport.pool.turns``.
                if taken == [False]:
                    return
                while self._changes:
                    self.observers = self._changes.popleft()(self.observers)
                for audience in list(self._audiences):
                    audience.refresh()
            finally:
                if taken == [True]:
                    self._guard.release()


_everywhere = _Everywhere()


def observe(observer: Callable[[Event], object] | Observer) -> Callable[[], None]:
    """Add an observer of all locks of this process, and return a function that removes it.

    It observes every ``Locks`` and ``AsyncLocks``, also those that are created later. Raises
    ``ConfigurationError`` as ``Observer`` does.
    """
    if getpid() != process.pid:
        enter_child()
    added = as_observer(observer)
    _everywhere.change(lambda before: (*before, added))
    _everywhere.settle()

    def stop() -> None:
        if getpid() != process.pid:
            enter_child()
        _everywhere.change(lambda before: tuple(each for each in before if each is not added))

    return stop


def as_observer(given: Any) -> Observer:
    return given if isinstance(given, Observer) else Observer(given)


def as_observers(given: Any) -> tuple[Observer, ...]:
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise ConfigurationError(
            f"observers={given!r:.80} must be a list of functions, as in observers=[print]"
        )
    return tuple(map(as_observer, given))
