"""What has happened in this process lately: waits, outages, losses, and what was taken away by force."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from ... import events
from ..._api import BaseLocks
from ..._platform.forks import reset_after_fork
from ..._platform.logs import and_others
from ...events import Event, KeyEvent

KEPT: Final = 15 * 60.0
"""Seconds for which things are remembered."""

MOST: Final = 100
"""How many incidents are remembered; a flood pushes the oldest ones out."""

SLICE: Final = 10.0
"""Seconds of each slice in which waits are summed up."""

INCIDENTS: Final[Mapping[type[Event], tuple[str, str]]] = {
    events.Lost: ("problem", "lease {fence} of {label} was lost: {reason}"),
    events.Unavailable: ("problem", "the engine could not serve a caller: {cause}"),
    events.FailedOpen: ("problem", "{label} runs without the lock: {cause}"),
    events.Forced: ("warning", "{by} took it from {holder}{and_others}, by force"),
    events.AtRisk: (
        "warning",
        "lease {fence} of {label} was not renewed, and expires in {remaining:.1f} s",
    ),
    events.Recovering: (
        "warning",
        "the engine grants nothing for another {retry_after:.0f} s: {cause}",
    ),
    events.TimedOut: ("warning", "{label} waited {waited:.1f} s and timed out"),
    events.Refused: ("warning", "{label} was rejected: {waiters} were waiting"),
    events.Available: (
        "ok",
        "the engine is available again, after {lasted:.1f} s and {requests} failed requests",
    ),
}
"""The events that are incidents: the severity of each, and a sentence about it without the key."""

KINDS: Final = frozenset({*INCIDENTS, events.Acquired, events.GaveUp, events.Repeated})
"""The events that are observed."""


class History:
    """Receives events from any thread, and returns what it remembers of those that concern some locks.

    These are the events of their engine, and of the keys of their namespace.
    """

    def __init__(self, locks: BaseLocks, now: Callable[[], float] = time.time) -> None:
        self._engine, self._namespace = locks.engine, locks.namespace
        self._now = now
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Start empty in a forked child."""
        self._guard = threading.Lock()
        self._incidents: deque[dict[str, Any]] = deque(maxlen=MOST)
        self._waits: deque[list[float]] = deque(maxlen=round(KEPT / SLICE))
        self._repeats: deque[tuple[float, Counter[str]]] = deque(maxlen=round(KEPT / SLICE))

    def hear(self, event: Event) -> None:
        """Remember an event. It does so within microseconds."""
        if event.engine != self._engine or (
            isinstance(event, KeyEvent) and event.namespace != self._namespace
        ):
            return
        now = self._now()
        with self._guard:
            waited, start = getattr(event, "waited", None), now - now % SLICE
            if isinstance(event, events.Repeated):
                if not self._repeats or self._repeats[-1][0] != start:
                    self._repeats.append((start, Counter()))
                self._repeats[-1][1][event.outcome] += 1
            if waited is not None:
                if not self._waits or self._waits[-1][0] != start:
                    self._waits.append([start, 0, 0.0])
                last = self._waits[-1]
                last[1] += 1
                last[2] = max(last[2], round(waited, 3))
            if type(event) in INCIDENTS:
                self._remember(now, event)

    def waits(self) -> list[list[float]]:
        """Return for each slice of time when it began, how many waits ended, and the longest, seconds."""
        oldest = self._now() - KEPT
        with self._guard:
            return [list(each) for each in self._waits if each[0] >= oldest]

    def repeats(self) -> dict[str, int]:
        """Return how many requests with a known idempotency key were not executed, by outcome."""
        oldest, found = self._now() - KEPT, Counter(replayed=0, running=0, reused=0)
        with self._guard:
            for start, counts in self._repeats:
                found.update(counts if start >= oldest else {})
        return dict(found)

    def incidents(self) -> list[dict[str, Any]]:
        """Return what went wrong, the last first."""
        oldest = self._now() - KEPT
        with self._guard:
            return [dict(each) for each in reversed(self._incidents) if each["at"] >= oldest]

    def _remember(self, now: float, event: Event) -> None:
        """Count a repeated incident, so that it does not push out all others."""
        level, text = INCIDENTS[type(event)]
        facts = dict(event.facts())
        besides = and_others(event.others) if isinstance(event, events.Forced) else ""
        text = text.format(**facts, and_others=besides)
        what = {"name": event.name, "key": facts.get("key"), "level": level}
        last = self._incidents[-1] if self._incidents else None
        if last and all(last[name] == value for name, value in what.items()):
            last.update(at=now, count=last["count"] + 1, text=text)
        else:
            self._incidents.append({"at": now, "count": 1, "text": text, **what})
