"""For how long an engine has not answered anybody."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 5.0
"""Seconds without an answer after which an acquisition gives up, or its ttl if that is longer."""


class Outage:
    """What those who asked an engine have found: it fails, and since when."""

    __slots__ = ("_since", "last")

    def __init__(self) -> None:
        self._since = 0.0
        self.last: float | None = None
        """When it last failed; ``None`` once it has answered."""

    def failed(self, sent: float, now: float) -> float:
        """Takes note of a failure. Seconds since the first one that nothing better followed."""
        if self.last is None or now - self.last > LONGEST:
            self._since = sent
        self.last = now
        return now - self._since
