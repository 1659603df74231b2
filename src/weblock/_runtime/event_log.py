"""Logs events: their names, levels and fields are those of docs/monitoring.md.

The length of a line is limited, and no client can forge one: keys, labels and a server's errors
are quoted, without line breaks. Of events that come in floods, some lines a second are logged, and
the next one says how many were left out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from .._platform.forks import heed_forks
from .._platform.logs import and_others, audit, logger, printable
from .._platform.threads import BackgroundThread
from ..events import (
    EVENTS,
    Acquired,
    Answered,
    AtRisk,
    Available,
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
    TakenOver,
    TimedOut,
    Unavailable,
    Waiting,
)

FREQUENT: Final = frozenset({Waiting, Acquired, Released, HandedOver, TakenOver, GaveUp})
"""Events of every request: they are logged at DEBUG."""

KINDS: Final = frozenset(EVENTS.values()) - {Answered}
"""All events that are logged."""

RARE: Final = KINDS - FREQUENT

WINDOW: Final = 1.0
"""Seconds in which only a limited number of lines of one kind are logged."""

REMINDER: Final = 60.0
"""Seconds between two lines about one outage of an engine."""

LENGTH: Final = 200
"""The longest key, label or cause in a message, in characters."""

REMEDY: Final = (
    "Callers with a longer wait get their locks then; others are refused. recovery= in the engine's"
    " URL says for how long: the longest ttl in use is enough. Where overlaps do no harm, as in"
    " development and tests, recovery=off grants at once."
)

LOSSES: Final = {
    "expired": "it was not renewed in time",
    "taken": "the engine no longer knows it",
    "max_hold": "it was held for longer than max_hold allows",
    "closed": "its Locks was closed while it was held",
}

Message = tuple[Any, ...]
"""A format, and its arguments."""


def write(event: Any) -> None:
    """Log an event, unless too many are logged. An immediate observer."""
    how = _HOW[type(event)]
    if how.log.isEnabledFor(how.level) and (how.most is None or _floods.admit(event, how.most)):
        how.write(event)


@dataclass(frozen=True, slots=True)
class _How:
    """How a kind of event is logged: at most ``most`` lines a second for each template."""

    level: int
    message: Callable[[Any], Message | None]
    most: int | None = None
    log: Any = logger

    def write(self, event: Event, more: int = 0) -> None:
        message = self.message(event)
        if message is None:
            return
        text, *values = message
        if more:
            text, values = f"{text} (and %d more like it within a second)", [*values, more]
        self.log.log(self.level, text, *values, extra={**fields(event), "count": more + 1})


_ALWAYS: Final = dict.fromkeys(("namespace", "key", "template", "label", "fence", "waited"))


def fields(event: Event) -> Mapping[str, object]:
    """Return the fields of a log record, some of which every event has."""
    facts = {
        name: printable(value) if isinstance(value, str) else value
        for name, value in event.facts().items()
    }
    return {**_ALWAYS, **facts, "event": event.name}


class _Quoted:
    """A text that others wrote, as it may stand in a message; quoted only if it is logged."""

    __slots__ = ("_text",)

    def __init__(self, text: str | None) -> None:
        self._text = text

    def __str__(self) -> str:
        text = self._text or ""
        short = text if len(text) <= LENGTH else f"{text[:LENGTH]}..."
        return repr(str(short))


def _waiting(event: Waiting) -> Message:
    return (
        "waiting for the lock %s: %d in front%s",
        _Quoted(event.key),
        event.place,
        _held_by(event),
    )


def _acquired(event: Acquired) -> Message:
    key = _Quoted(event.key)
    return "acquired the lock %s after %.3f s (fence %d)", key, event.waited, event.fence


def _released(event: Released) -> Message:
    key = _Quoted(event.key)
    return "released the lock %s after %.3f s (fence %d)", key, event.held_for, event.fence


def _handed_over(event: HandedOver) -> Message:
    return (
        "handed over the lease of %s (fence %d) after %.3f s: its token is good for %.1f s",
        _Quoted(event.key),
        event.fence,
        event.held_for,
        event.ttl,
    )


def _taken_over(event: TakenOver) -> Message:
    return "took over the lease of %s (fence %d)", _Quoted(event.key), event.fence


def _at_risk(event: AtRisk) -> Message:
    return (
        "lease of %s (fence %d) is at risk, and ends in %.1f s: its renewal failed: %s",
        _Quoted(event.key),
        event.fence,
        event.remaining,
        _cause(event.cause),
    )


def _lost(event: Lost) -> Message:
    return (
        "lease of %s (fence %d) was lost after %.1f s: %s",
        _Quoted(event.key),
        event.fence,
        event.held_for,
        LOSSES.get(event.reason, event.reason),
    )


def _release_asked(event: ReleaseAsked) -> Message:
    return (
        "the holder of the lock %s (fence %d) was asked to release it, after %.1f s",
        _Quoted(event.key),
        event.fence,
        event.held_for,
    )


def _forgotten(event: Forgotten) -> Message:
    return (
        (
            "the lease of %s (fence %d) was forgotten: nothing refers to it any more, and it is released"
            " now. Use it in a with block, or call release()"
        ),
        _Quoted(event.key),
        event.fence,
    )


def _timed_out(event: TimedOut) -> Message:
    front = "1 caller was" if event.place == 1 else f"{event.place} callers were"
    place = "" if event.place is None else f", and {front} in front"
    return (
        "lock %s was not acquired in %.3g s: it is held%s%s",
        _Quoted(event.key),
        event.waited,
        _held_by(event, before=" by "),
        place,
    )


def _refused(event: Refused) -> Message:
    return (
        "lock %s was refused: %d %s waiting already (max_waiters)%s",
        _Quoted(event.key),
        event.waiters,
        "caller is" if event.waiters == 1 else "callers are",
        _held_by(event),
    )


def _gave_up(event: GaveUp) -> Message:
    return "a caller gave up the lock %s after %.3f s", _Quoted(event.key), event.waited


def _unavailable(event: Unavailable) -> Message | None:
    outage = _outages.goes_on(event)
    if outage is None:
        return None
    lasts, requests = outage
    if requests == 1:
        return "engine %s does not answer: %s", event.engine, _cause(event.cause)
    return (
        "engine %s has not answered for %.0f s, and %d requests were given up: %s",
        event.engine,
        lasts,
        requests,
        _cause(event.cause),
    )


def _available(event: Available) -> Message | None:
    if not _outages.ends(event.engine):
        return None  # Another Locks on this engine has said so.
    return (
        "engine %s answers again after %.1f s, in which %d requests were given up",
        event.engine,
        event.lasted,
        event.requests,
    )


def _recovering(event: Recovering) -> Message:
    return "engine %s is recovering: %s. %s", event.engine, _cause(event.cause), REMEDY


def _failed_open(event: FailedOpen) -> Message:
    return (
        "a section runs without the lock of %s (fail-open): %s",
        _Quoted(event.key),
        _cause(event.cause),
    )


def _forced(event: Forced) -> Message:
    return (
        "%s took the lease of %s from %s%s by force (fence %s, held for %.1f s, %d waiting)",
        _Quoted(event.by),
        _Quoted(event.key),
        _Quoted(event.holder),
        and_others(event.others),
        event.fence,
        event.held_for,
        event.waiters,
    )


def _not_renewed(event: NotRenewed) -> Message | None:
    if event.engine in _said_of:
        return None
    _said_of.add(event.engine)
    text = (
        "leases of %s are renewed only while handlers wait for something: %s. A handler that"
        " computes for longer than its ttl loses its lease: call gevent.sleep(0) or eventlet.sleep(0)"
        " in it now and then, give it a longer ttl=, or run the application in workers with threads"
    )
    return text, event.engine, _cause(event.cause)


def _held_by(event: Waiting | TimedOut | Refused, before: str = ", held by ") -> str:
    return f"{before}{_Quoted(event.holder)}{and_others(event.others)}" if event.holder else ""


def _cause(cause: str) -> str:
    return printable(cause)[: 2 * LENGTH]


_HOW: Final[Mapping[type[Event], _How]] = {
    Waiting: _How(logging.DEBUG, _waiting),
    Acquired: _How(logging.DEBUG, _acquired),
    Released: _How(logging.DEBUG, _released),
    HandedOver: _How(logging.DEBUG, _handed_over),
    TakenOver: _How(logging.DEBUG, _taken_over),
    GaveUp: _How(logging.DEBUG, _gave_up),
    ReleaseAsked: _How(logging.INFO, _release_asked, most=10),
    TimedOut: _How(logging.INFO, _timed_out, most=1),
    Refused: _How(logging.INFO, _refused, most=1),
    AtRisk: _How(logging.WARNING, _at_risk, most=10),
    Lost: _How(logging.WARNING, _lost, most=10),
    Forgotten: _How(logging.WARNING, _forgotten, most=10),
    FailedOpen: _How(logging.WARNING, _failed_open, most=10),
    Unavailable: _How(logging.WARNING, _unavailable),
    Available: _How(logging.INFO, _available),
    Recovering: _How(logging.WARNING, _recovering, most=1),
    NotRenewed: _How(logging.WARNING, _not_renewed),
    Forced: _How(logging.WARNING, _forced, log=audit),
}


_said_of: Final[set[str]] = set()
"""Engines for which a ``NotRenewed`` was logged."""


class _Outage:
    """What was logged about an engine that does not answer."""

    __slots__ = ("next", "requests", "since")

    def __init__(self, now: float) -> None:
        self.since = now
        self.next = now
        self.requests = 0


class _Outages:
    """The engines that do not answer."""

    def __init__(self) -> None:
        self.after_fork()
        heed_forks(self)

    def after_fork(self) -> None:
        self._guard = threading.RLock()  # A finalizer inside may have to log, too.
        self._engines: dict[str, _Outage] = {}

    def goes_on(self, event: Unavailable) -> tuple[float, int] | None:
        """Return the seconds and requests of the outage so far, if it is time to log them."""
        if event.recovering:
            return None
        now = time.monotonic()
        with self._guard:
            outage = self._engines.setdefault(event.engine, _Outage(now))
            outage.requests += 1
            if now < outage.next:
                return None
            outage.next = now + REMINDER
            return now - outage.since, outage.requests

    def ends(self, engine: str) -> bool:
        with self._guard:
            return self._engines.pop(engine, None) is not None


_outages = _Outages()


class _Flood:
    """The lines of one kind in a second, and how many were left out."""

    __slots__ = ("last", "lines", "more", "until")

    def __init__(self, until: float, lines: int) -> None:
        self.until = until
        self.lines = lines
        self.more = 0
        self.last: Event | None = None


class _Floods:
    """Counts lines, and logs at the end of a second how many were left out."""

    def __init__(self) -> None:
        self.after_fork()
        heed_forks(self)

    def after_fork(self) -> None:
        self._guard = threading.RLock()  # A finalizer inside may have to log, too.
        self._floods: dict[tuple[Any, ...], _Flood] = {}
        self._thread = BackgroundThread("weblock-log", self._until_quiet, lambda: self._swollen)

    @property
    def _swollen(self) -> bool:
        return any(flood.more for flood in tuple(self._floods.values()))

    def admit(self, event: Event, most: int) -> bool:
        """Return whether to log an event now. If not, it is counted."""
        sort = (type(event), event.engine, event.template if isinstance(event, KeyEvent) else None)
        now = time.monotonic()
        with self._guard:
            flood = self._floods.get(sort)
            if flood is None or (now >= flood.until and not flood.more):
                if len(self._floods) > 1000:
                    self._forget(now)
                self._floods[sort] = _Flood(now + WINDOW, lines=1)
                return True
            if flood.lines < most:
                flood.lines += 1
                return True
            flood.more += 1
            flood.last = event
        self._thread.start()
        return False

    def _until_quiet(self) -> None:
        while self._swollen:
            floods = tuple(self._floods.values())
            ends = min((flood.until for flood in floods if flood.more), default=0.0)
            time.sleep(max(0.0, ends - time.monotonic()))
            for say in self._ended(time.monotonic()):
                say()

    def _ended(self, now: float) -> list[Callable[[], None]]:
        """Return the summaries of the seconds that have ended."""
        says: list[Callable[[], None]] = []
        with self._guard:
            for flood in tuple(self._floods.values()):
                if flood.last and now >= flood.until:
                    how = _HOW[type(flood.last)]
                    says.append(partial(how.write, flood.last, flood.more - 1))
                    flood.last, flood.more = None, 0
                    flood.lines, flood.until = how.most or 1, now + WINDOW
        return says

    def _forget(self, now: float) -> None:
        for sort, flood in tuple(self._floods.items()):
            if now >= flood.until and not flood.more:
                del self._floods[sort]


_floods = _Floods()
