"""Asking for a busy key now and then, for those who do not want to stand in its queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Attempts:
    """A ``wait`` that asks at most ``count`` times, with pauses that grow, instead of queueing.

    The first pause is ``pause`` seconds long, each further one twice as long as the one before, but
    none longer than ``longest``; of each, a random half is left out, so that those who came at once
    do not come back at once. Whoever waits in the queue gets the key first. Raises
    ``ConfigurationError`` for what cannot be meant.
    """

    count: int
    pause: float = 0.1
    longest: float = 2.0

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 1:
            raise ConfigurationError(f"Attempts(count={self.count!r:.80}) must be 1 or more")
        if not 0 < self.pause <= self.longest:
            raise ConfigurationError(
                f"Attempts(pause={self.pause!r:.80}, longest={self.longest!r:.80}): seconds, of"
                " which the first are more than 0 and not more than the second"
            )

    def pauses(self) -> Iterator[float]:
        """The seconds between one attempt and the next, at most."""
        pause = self.pause
        for _ in range(self.count - 1):
            yield pause
            pause = min(self.longest, 2 * pause)
