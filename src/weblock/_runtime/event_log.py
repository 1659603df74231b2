"""Logs events: their names, levels and fields are those of docs/monitoring.md.

The length of a line is limited, and no client can forge one: keys, labels and a server's errors
are quoted, without line breaks. Of events that come in floods, some lines are logged at once, and
one more says how many were left out.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .._platform.forks import reset_after_fork
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
    Repeated,
    TakenOver,
    TimedOut,
    Unavailable,
    Waiting,
)

FREQUENT: Final = frozenset({Waiting, Acquired, Released, HandedOver, TakenOver, GaveUp, Repeated})
"""Events of every request: they are logged at DEBUG."""

KINDS: Final = frozenset(EVENTS.values()) - {Answered}
"""All events that are logged."""

RARE: Final = KINDS - FREQUENT

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
        " %(retry_after).3g s: callers whose wait= is longer get their locks then, and others fail."
        " In the engine's URL, set recovery= to the longest ttl in use; or recovery=off where overlaps"
        " do no harm, as in development and tests",
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

_LOSSES: Final = {
    "expired": "it was not renewed in time",
    "taken": "the engine no longer knows it",
    "max_hold": "it was held for longer than max_hold allows",
    "closed": "its Locks was closed while it was held",
}

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
        words["why"] = _LOSSES.get(event.reason, event.reason)
    if isinstance(event, Waiting | TimedOut | Refused | Forced):
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
                    self._forget(now)
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

    def _forget(self, now: float) -> None:
        for sort, flood in list(self._floods.items()):
            if now >= flood.until and not flood.more:
                del self._floods[sort]


_floods = _Floods()
