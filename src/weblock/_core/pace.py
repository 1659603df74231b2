"""How fast a queue moves, as one waiter has seen it."""

from __future__ import annotations


class Pace:
    """Estimates how fast a queue moves, from the places that one waiter has had."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last = 0.0
        self.place: int | None = None
        """How many waiters were in front when it last asked; the holder is not counted."""

    def saw(self, place: int, now: float) -> None:
        """Record that at ``now`` this many waiters were in front."""
        if self._first is None or place > self._first[1]:  # Later, in a queue that was lost.
            self._first = now, place
        self._last, self.place = now, place

    def until_its_turn(self, rest: float) -> float:
        """Return the seconds until its turn at the pace that was seen.

        If nothing has moved, return ``rest``.
        """
        if self._first is None or self.place is None or self.place >= self._first[1]:
            return rest
        since, first = self._first
        return (self._last - since) / (first - self.place) * (self.place + 1)
