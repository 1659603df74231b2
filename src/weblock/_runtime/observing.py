"""How events reach what observes them: the log, and functions of the application.

**The log.** The names, levels and fields of its lines are those of docs/monitoring.md. The length of a line
is limited, and no client can forge one: keys, labels and a server's errors are quoted, without line
breaks. Of events that come in floods, some lines are logged at once, and one more says how many were left
out.

**Functions of the application.** Observers and callbacks cannot harm what calls them.
"""

from __future__ import annotations

import inspect
import logging
import math
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty
from typing import Any, Final

from .._core.reporting import Listener, Observers
from .._platform.forks import enter_child, getpid, process, reset_after_fork
from .._platform.logs import and_others, audit, logger, printable
from .._platform.threads import BackgroundThread
from ..errors import LOSSES, ConfigurationError
from ..events import (
    EVENTS,
    Acquired,
    AtRisk,
    Available,
    BusyEvent,
    Event,
    FailedOpen,
    Forced,
    Forgotten,
    GaveUp,
    HandedOver,
    KeyEvent,
    Lost,
    NotRenewed,
    Recovering,
    Refused,
    ReleaseAsked,
    Released,
    Repeated,
    TakenOver,
    TimedOut,
    Unavailable,
    Waiting,
)

SECOND: Final = 1.0
MINUTE: Final = 60.0

LENGTH: Final = 200
"""The longest key, label or cause in a message, in characters."""


@dataclass(frozen=True, slots=True)
class _Line:
    """How a kind of event is logged: at most ``most`` lines in a window, for each template."""

    level: int
    text: str
    most: float = math.inf
    window: float = SECOND
    log: Any = logger
    later: str = ""
    """What is said at the end of a window of the events that were left out; ``text``, unless given."""
    code: str = ""
    """Of a line that is a warning: see ``WeblockError.code``."""


_LINES: Final[Mapping[type[Event], _Line]] = {
    Waiting: _Line(logging.DEBUG, "waiting for the lock %(key)s: %(place)d ahead%(held_by)s"),
    Acquired: _Line(
        logging.DEBUG, "acquired the lock %(key)s after %(waited).3f s (fence %(fence)d)"
    ),
    Released: _Line(
        logging.DEBUG, "released the lock %(key)s after %(held_for).3f s (fence %(fence)d)"
    ),
    HandedOver: _Line(
        logging.DEBUG,
        "handed over the lease of %(key)s (fence %(fence)d) after %(held_for).3f s: its token is"
        " good for %(ttl).1f s",
    ),
    TakenOver: _Line(logging.DEBUG, "took over the lease of %(key)s (fence %(fence)d)"),
    GaveUp: _Line(
        logging.DEBUG, "a caller stopped waiting for the lock %(key)s after %(waited).3f s"
    ),
    ReleaseAsked: _Line(
        logging.INFO,
        "the holder of the lock %(key)s (fence %(fence)d) was asked to release it, after"
        " %(held_for).1f s",
        most=10,
    ),
    TimedOut: _Line(
        logging.INFO,
        "lock %(key)s was not acquired in %(waited).3g s%(held_by)s%(ahead)s",
        most=1,
    ),
    Refused: _Line(
        logging.INFO,
        "lock %(key)s was not acquired: %(already)s waiting already (max_waiters)%(held_by)s",
        most=1,
    ),
    AtRisk: _Line(
        logging.WARNING,
        "lease of %(key)s (fence %(fence)d) is at risk, and expires in %(remaining).1f s: its"
        " renewal failed: %(cause)s",
        most=10,
        code="at_risk",
    ),
    Lost: _Line(
        logging.WARNING,
        "lease of %(key)s (fence %(fence)d) was lost after %(held_for).1f s: %(why)s",
        most=10,
        code="lease_lost",
    ),
    Forgotten: _Line(
        logging.WARNING,
        "the lease of %(key)s (fence %(fence)d) was not released, and is no longer referenced: it"
        " is released now. Use it in a with block, or call release()",
        most=10,
        code="forgotten",
    ),
    FailedOpen: _Line(
        logging.WARNING,
        "a section runs without the lock of %(key)s (fail-open): %(cause)s",
        most=10,
        code="failed_open",
    ),
    Unavailable: _Line(
        logging.WARNING,
        "engine %(engine)s is unavailable: %(cause)s",
        most=1,
        window=MINUTE,
        later="%(count)d more requests to engine %(engine)s failed within a minute: %(cause)s",
        code="engine_unavailable",
    ),
    Available: _Line(
        logging.INFO,
        "engine %(engine)s is available again after %(lasted).1f s, in which %(requests)d requests"
        " failed",
    ),
    Recovering: _Line(
        logging.WARNING,
        "engine %(engine)s is recovering: %(cause)s. It grants no locks for another"
        " %(retry_after).3g s: callers whose wait= is longer get their locks then, and others"
        " fail. In the engine's URL, set recovery= to the longest ttl in use; or recovery=off"
        " where overlaps do no harm, as in development and tests",
        most=1,
        code="engine_recovering",
    ),
    Repeated: _Line(
        logging.DEBUG, "a request for %(key)s was not executed, as one was before: %(outcome)s"
    ),
    NotRenewed: _Line(
        logging.WARNING,
        "leases of %(engine)s are renewed only while handlers wait for something: %(cause)s. A"
        " handler that computes for longer than its ttl loses its lease: call gevent.sleep(0) or"
        " eventlet.sleep(0) in it regularly, raise its ttl=, or run the application in workers with"
        " threads",
        most=1,
        window=math.inf,
        code="not_renewed",
    ),
    Forced: _Line(
        logging.WARNING,
        "%(by)s took the lease of %(key)s from %(holder)s%(and_others)s by force (fence %(fence)s,"
        " held for %(held_for).1f s, %(waiters)d waiting)",
        log=audit,
        code="forced",
    ),
}

EVERY: Final = frozenset(_LINES)
"""All kinds of events but ``Answered``, of which there are several for each lease."""

RARE: Final = frozenset(kind for kind, line in _LINES.items() if line.level > logging.DEBUG)
"""Those that do not happen to each request, and are logged at ``INFO`` or above."""

_ALWAYS: Final = dict.fromkeys(("namespace", "key", "template", "label", "fence", "waited"))
"""The fields that every record has."""


def write(event: Event) -> None:
    """Log an event, unless too many are logged. An immediate observer."""
    line = _LINES[type(event)]
    if isinstance(event, Available) and not _floods.end_of(Unavailable, event.engine):
        return  # Another Locks on this engine has said so.
    if isinstance(event, Unavailable) and event.recovering:
        return  # It answers, and ``Recovering`` says why it grants nothing.
    if line.log.isEnabledFor(line.level) and _floods.admit(event, line):
        _log(event, line)


def _log(event: Event, line: _Line, left_out: int = 0) -> None:
    """Log an event, or how many like it were left out: the last of these."""
    words: dict[str, Any] = dict(event.facts())
    for name in {"key", "holder", "by"} & words.keys():
        text = words[name] or ""
        words[name] = repr(text if len(text) <= LENGTH else f"{text[:LENGTH]}...")
    if "cause" in words:
        words["cause"] = printable(words["cause"])[: 2 * LENGTH]
    if isinstance(event, Lost):
        words["why"] = LOSSES.get(event.reason, event.reason)
    if isinstance(event, BusyEvent | Forced):
        words["and_others"] = and_others(event.others)
        words["held_by"] = f", held by {words['holder']}{words['and_others']}" * bool(event.holder)
    if isinstance(event, TimedOut):
        ahead = "1 caller was" if event.place == 1 else f"{event.place} callers were"
        words["ahead"] = "" if event.place is None else f"; {ahead} ahead in the queue"
    if isinstance(event, Refused):
        words["already"] = "1 caller is" if event.waiters == 1 else f"{event.waiters} callers are"
    text = line.text
    words["count"] = count = left_out or 1
    if left_out and line.later:
        text = line.later
    elif count > 1:
        text = f"{text} (and {count - 1} more like it within a second)"
    if line.code:
        text = f"{text} [weblock.{line.code}]"
    facts = {
        name: printable(value) if isinstance(value, str) else value
        for name, value in event.facts().items()
    }
    extra = {**_ALWAYS, **facts, "event": event.name, "count": count}
    line.log.log(line.level, text, words, extra=extra)


class _Flood:
    """The lines of one kind in a window, and how many were left out."""

    __slots__ = ("last", "lines", "more", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.lines = 1
        self.more = 0
        self.last: Event | None = None


class _Floods:
    """Counts lines, and logs at the end of a window how many were left out."""

    def __init__(self) -> None:
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        self._guard = threading.RLock()  # A finalizer inside may have to log, too.
        self._floods: dict[tuple[type[Event], str, str | None], _Flood] = {}
        self._thread = BackgroundThread(
            "weblock-log", self._until_quiet, lambda: self._has_suppressed
        )

    @property
    def _has_suppressed(self) -> bool:
        return any(flood.more for flood in list(self._floods.values()))

    def admit(self, event: Event, line: _Line) -> bool:
        """Return whether to log an event now. If not, it is counted, unless its window never ends."""
        if line.most == math.inf:
            return True
        sort = (type(event), event.engine, event.template if isinstance(event, KeyEvent) else None)
        now = time.monotonic()
        with self._guard:
            flood = self._floods.get(sort)
            if flood is None or (now >= flood.until and not flood.more):
                if len(self._floods) > 1000:
                    self._floods = {
                        each: flood
                        for each, flood in list(self._floods.items())
                        if now < flood.until or flood.more
                    }
                self._floods[sort] = _Flood(now + line.window)
                return True
            if flood.lines < line.most:
                flood.lines += 1
                return True
            if line.window == math.inf:
                return False
            flood.more += 1
            flood.last = event
        self._thread.start()
        return False

    def end_of(self, kind: type[Event], engine: str) -> bool:
        with self._guard:
            return self._floods.pop((kind, engine, None), None) is not None

    def _until_quiet(self) -> None:
        while self._has_suppressed:
            time.sleep(SECOND)
            now, ended = time.monotonic(), []
            with self._guard:
                for flood in list(self._floods.values()):
                    if flood.last and now >= flood.until:
                        line = _LINES[type(flood.last)]
                        ended.append((flood.last, line, flood.more))
                        flood.last, flood.more = None, 0
                        flood.lines, flood.until = int(line.most), now + line.window
            for each in ended:
                _log(*each)


_floods = _Floods()


MOST_UNTOLD: Final = 10_000
"""Events that wait for a slow observer; further ones are dropped."""

FLUSH: Final = 1.0
"""Seconds that closing a ``Locks`` waits for its observers to receive their events."""

LINGER: Final = 1.0
"""Seconds for which the thread of callbacks waits for another."""

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
        only: Collection[type[Event]] = EVERY,
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
                f"observer {call!r:.80} is async, and observers are called where no event loop"
                " runs: give a function, which can pass the event on with"
                " loop.call_soon_threadsafe"
            )
        named: Any = only
        kinds = tuple(named) if isinstance(named, Iterable) else (named,)
        for kind in kinds:
            if kind not in EVENTS.values():
                raise ConfigurationError(
                    f"only={kind!r:.80} is not a kind of event: give classes of weblock.events, as"
                    " in only=[weblock.events.Lost]"
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
        debugs = (self.level or self.root_level) <= logging.DEBUG
        wanted: dict[type[Event], list[Listener]] = {}
        logged = EVERY if debugs else RARE
        listeners: list[tuple[Collection[type[Event]], Listener]] = [(logged, write)]
        observers = (*_everywhere.observers, *self._own)
        self.sleepers = [each.asleep for each in observers if each.asleep and each.asleep()]
        listeners += [
            (each.only, each.listener) for each in observers if each.asleep not in self.sleepers
        ]
        for kinds, listener in listeners:
            for kind in kinds:
                wanted.setdefault(kind, []).append(listener)
        self.wanted = wanted

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
