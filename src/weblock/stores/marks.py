"""Marks of what is done: which of them to check for their end."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

PORTION: Final = 20
"""How many marks are checked with each new one: those that have ended become fewer."""

ROUND_EVERY: Final = 600.0
"""Seconds between two lists of all marks that a process asks for."""


class Rounds:
    """Which marks to check for their end: a few with each new one, and in time all of them.

    So marks that have ended do not pile up, and a call does not take longer for their number.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._list_at = float("-inf")

    def due(self, now: float) -> bool:
        """Return whether the marks should be listed again, for ``begin``."""
        return not self._names and now >= self._list_at

    def begin(self, names: Iterable[str], now: float) -> None:
        """Begin a round, in random order: processes that end soon check all of them together."""
        self._names = list(names)
        random.shuffle(self._names)
        self._list_at = now + ROUND_EVERY

    def portion(self) -> list[str]:
        """Return the names of the next few marks to check; none before the next round."""
        portion, self._names = self._names[:PORTION], self._names[PORTION:]
        return portion
