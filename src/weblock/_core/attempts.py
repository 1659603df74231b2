"""Asking for a busy key a few times, instead of waiting in its queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ..errors import ConfigurationError

LONGEST: Final = 86400.0
"""Seconds of a pause, at most."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """A ``wait`` that asks a few times, with a growing backoff, instead of joining the queue.

    Each pause is twice as long as the one before, and a random half of it is left out, so that
    callers that came at the same moment do not come back at the same moment. Waiters in the queue
    get the key first.

    Attributes:
        count: How often to ask, at most.
        pause: The first pause, in seconds.
        longest: The longest pause, in seconds; a day at most.

    Raises:
        ConfigurationError: A value cannot work.
    """

    count: int
    pause: float = 0.1
    longest: float = 2.0

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 1:
            raise ConfigurationError(
                f"Attempts(count={self.count!r:.80}) must be an integer of 1 or more"
            )
        numbers = all(type(each) in (int, float) for each in (self.pause, self.longest))
        if not numbers or not 0 < self.pause <= self.longest <= LONGEST:
            raise ConfigurationError(
                f"Attempts(pause={self.pause!r:.80}, longest={self.longest!r:.80}) must be seconds:"
                f" pause is more than 0 and at most longest, which is at most {LONGEST:g}"
            )

    def pauses(self) -> Iterator[float]:
        """Return the pauses between the attempts, in seconds."""
        pause = self.pause
        for _ in range(self.count - 1):
            yield pause
            pause = min(self.longest, 2 * pause)
