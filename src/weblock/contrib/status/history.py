"""What has happened in this process lately: waits, outages, losses, and what was taken away by force."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from ... import events
from ..._platform.forks import heed_forks
from ..._platform.logs import and_others
from ...events import Event, KeyEvent

KEPT: Final = 15 * 60.0
"""Seconds for which things are remembered."""

MOST: Final = 100
"""How many incidents are remembered; a flood pushes the oldest ones out."""

SLICE: Final = 10.0
"""Seconds of each slice in which waits are summed up."""

INCIDENTS: Final = {
    events.Lost: "problem",
    events.Unavailable: "problem",
    events.FailedOpen: "problem",
    events.Forced: "warning",
    events.AtRisk: "warning",
    events.Recovering: "warning",
    events.TimedOut: "warning",
    events.Refused: "warning",
    events.Available: "ok",
}
"""The events that are incidents, and their severity."""

KINDS: Final = frozenset({*INCIDENTS, events.Acquired, events.GaveUp})
"""The events that are observed."""


class History:
    """Receives events from any thread, and returns what it remembers."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self.after_fork()
        heed_forks(self)

    def after_fork(self) -> None:
        """Start empty in a forked child."""
        self._guard = threading.Lock()
        self._incidents: deque[dict[str, Any]] = deque(maxlen=MOST)
        self._waits: deque[list[float]] = deque(maxlen=round(KEPT / SLICE))

    def hear(self, event: Event) -> None:
        """Remember an event. It does so within microseconds."""
        now = self._now()
        with self._guard:
            waited = getattr(event, "waited", None)
            if waited is not None:
                self._waited(now, waited)
            if (level := INCIDENTS.get(type(event))) is not None:
                self._remember(now, level, event)

    def waits(self) -> list[list[float]]:
        """Return for each slice of time when it began, how many waits ended, and the longest, seconds."""
        oldest = self._now() - KEPT
        with self._guard:
            return [list(each) for each in self._waits if each[0] >= oldest]

    def incidents(self) -> list[dict[str, Any]]:
        """Return what went wrong, the last first."""
        oldest = self._now() - KEPT
        with self._guard:
            return [dict(each) for each in reversed(self._incidents) if each["at"] >= oldest]

    def _waited(self, now: float, waited: float) -> None:
        start = now - now % SLICE
        if not self._waits or self._waits[-1][0] != start:
            self._waits.append([start, 0, 0.0])
        last = self._waits[-1]
        last[1] += 1
        last[2] = max(last[2], round(waited, 3))

    def _remember(self, now: float, level: str, event: Event) -> None:
        """Count a repeated incident, so that it does not push out all others."""
        facts = dict(event.facts())
        besides = and_others(event.others) if isinstance(event, events.Forced) else ""
        text = _TEXTS[type(event)].format(**facts, and_others=besides)
        what = {"name": event.name, "key": facts.get("key"), "level": level}
        last = self._incidents[-1] if self._incidents else None
        if last and all(last[name] == value for name, value in what.items()):
            last.update(at=now, count=last["count"] + 1, text=text)
        else:
            self._incidents.append({"at": now, "count": 1, "text": text, **what})


_TEXTS: Final[Mapping[type[Event], str]] = {
    events.Lost: "lease {fence} of {label} was lost: {reason}",
    events.AtRisk: "lease {fence} of {label} was not renewed, and ends in {remaining:.1f} s",
    events.TimedOut: "{label} waited {waited:.1f} s and timed out",
    events.Refused: "{label} was refused: {waiters} were waiting",
    events.Forced: "{by} took it from {holder}{and_others}, by force",
    events.FailedOpen: "{label} runs without the lock: {cause}",
    events.Unavailable: "the engine could not serve a caller: {cause}",
    events.Available: "the engine answers again, after {lasted:.1f} s and {requests} requests",
    events.Recovering: "the engine grants nothing for {retry_after:.0f} s more: {cause}",
}
"""The sentence about each event, without the key."""


def is_about(event: Event, engine: str, namespace: str) -> bool:
    """Return whether an event concerns these locks: their engine, or a key of their namespace."""
    in_namespace = not isinstance(event, KeyEvent) or event.namespace == namespace
    return event.engine == engine and in_namespace
