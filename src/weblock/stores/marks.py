"""Marks of what is done, for engines that forget them with their process."""

from __future__ import annotations

import time


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
