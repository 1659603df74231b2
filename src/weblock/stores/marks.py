"""Marks of what is done: a dict of them, and which of those elsewhere to check for their end."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import Final

PORTION: Final = 20
"""How many marks are checked with each new one: those that have ended become fewer."""

ROUND_EVERY: Final = 600.0
"""Seconds between two lists of all marks that a process asks for."""


class MarksInProcess:
    """A dict of marks, with the wall clock's time at which each ends."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}

    def put(self, key: str, keep: float | None) -> None:
        now = time.time()
        ended = [each for each, ends in tuple(self._ends.items()) if ends <= now]
        for each in ended:
            self._ends.pop(each, None)
        if keep == 0:  # An end of now would be to come again if the clock is set back.
            self._ends.pop(key, None)
            return
        self._ends[key] = float("inf") if keep is None else now + keep

    def has(self, key: str) -> bool:
        return time.time() < self._ends.get(key, 0.0)


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
