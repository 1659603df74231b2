"""How long an engine has not answered any caller."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 5.0
"""Seconds without an answer after which an acquisition fails, or the ttl of a renewed lease if that is longer."""

DOWN: Final = 1.0
"""Seconds without an answer to anybody after which a new caller asks only once, or not at all.

Where every request waits for an engine that is down, a server soon has no threads and connections left.
Callers that were waiting before go on.
"""

ASKED: Final = 0.1
"""Seconds after the request of one new caller in which others get the error without a request."""


class Outage:
    """What the callers of an engine have found: it fails, and since when."""

    __slots__ = ("_asked", "_began", "_since", "last", "requests")

    def __init__(self) -> None:
        self._since = self._began = 0.0
        self._asked = float("-inf")
        self.last: float | None = None
        """When it last failed; ``None`` once it has answered."""
        self.requests = 0
        """How many requests were given up meanwhile."""

    def end(self, now: float) -> tuple[float, int]:
        """Record an answer. Return the seconds and the requests that the outage has cost."""
        lasted, requests = now - self._began, self.requests
        self.last, self.requests = None, 0
        return lasted, requests

    def spares(self, now: float) -> float:
        """Return for how many seconds it has failed if a new caller need not ask; 0 if it has to ask.

        Nobody waits for the one that asks, which may be cancelled, or in a process that was forked.
        """
        last = self.last
        if last is None or now - last > LONGEST or now - self._since < DOWN:
            return 0.0
        if now - self._asked >= ASKED:
            self._asked = now
            return 0.0
        return now - self._since

    def failed(self, sent: float, now: float) -> float:
        """Record a failure.

        Return the seconds since the first failure that was followed neither by an answer nor by a
        long pause.
        """
        if self.last is None:
            self._began = sent
        if self.last is None or now - self.last > LONGEST:
            self._since = sent
        self.last = now
        return now - self._since
