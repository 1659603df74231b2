"""Pauses between attempts that grow, with jitter."""

from __future__ import annotations

import random
from collections.abc import Callable


def spread(pause: float, jitter: Callable[[], float] = random.random) -> float:
    """Return a random half of a pause, or more of it.

    So callers that have failed at the same moment do not come back at the same moment.
    """
    return pause * (0.5 + jitter() / 2)


class Backoff:
    """Pauses in seconds, each twice as long as the one before, up to the ``longest``."""

    def __init__(
        self, first: float, longest: float, *, jitter: Callable[[], float] = random.random
    ) -> None:
        self._first = self._pause = first
        self._longest = longest
        self._jitter = jitter

    def next(self) -> float:
        pause = self._pause
        self._pause = min(self._longest, 2 * pause)
        return spread(pause, self._jitter)

    def reset(self) -> None:
        """Begin again with the first pause: an attempt has succeeded."""
        self._pause = self._first
