"""How long an engine has not answered any caller."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 5.0
"""Seconds without an answer after which an acquisition fails, or the ttl of a renewed lease if that is longer."""


class Outage:
    """What the callers of an engine have found: it fails, and since when."""

    __slots__ = ("_began", "_since", "last", "requests")

    def __init__(self) -> None:
        self._since = self._began = 0.0
        self.last: float | None = None
        """When it last failed; ``None`` once it has answered."""
        self.requests = 0
        """How many requests were given up meanwhile."""

    def end(self, now: float) -> tuple[float, int]:
        """Record an answer. Return the seconds and the requests that the outage has cost."""
        lasted, requests = now - self._began, self.requests
        self.last, self.requests = None, 0
        return lasted, requests

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
