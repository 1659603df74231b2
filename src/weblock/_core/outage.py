"""For how long an engine has not answered anybody."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 5.0
"""Seconds without an answer after which an acquisition gives up, or its ttl if that is longer."""


class Outage:
    """What those who asked an engine have found: it fails, and since when."""

    __slots__ = ("_last", "_since")

    def __init__(self) -> None:
        self._since = 0.0
        self._last: float | None = None

    def answered(self) -> None:
        self._last = None

    def failed(self, sent: float, now: float) -> float:
        """Takes note of a failure. Seconds since the first one that nothing better followed."""
        if self._last is None or now - self._last > LONGEST:
            self._since = sent
        self._last = now
        return now - self._since
