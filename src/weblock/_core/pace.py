"""How fast a queue moves, as one who waits in it has seen."""

from __future__ import annotations


class Pace:
    """Of one waiter, from the places that it had."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last = 0.0
        self.place: int | None = None
        """How many were in front of it when it was last told; the holder is not among them."""

    def saw(self, place: int, now: float) -> None:
        """Notes that at ``now`` so many were in front."""
        if self._first is None or place > self._first[1]:  # Later, in a queue that was lost.
            self._first = now, place
        self._last, self.place = now, place

    def until_its_turn(self, rest: float) -> float:
        """Seconds that it would take one in this place at the pace that was seen.

        Where nothing has moved, ``rest``: by then the present lease has ended, or been renewed.
        """
        if self._first is None or self.place is None or self.place >= self._first[1]:
            return rest
        since, first = self._first
        return (self._last - since) / (first - self.place) * (self.place + 1)
