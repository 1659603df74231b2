"""How long a response to a request that locks is held back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..._options import Duration, seconds

STREAMS_AFTER: Final = 1.0
"""Seconds after which a response that has begun, and is not complete, is taken for a stream."""


def _none() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Policy:
    """When a response may go although the application has not returned yet.

    A complete response waits until the application has returned, for until then the work that it
    reports may still fail to commit. ``hold_back`` limits that to so many seconds, and
    ``background`` tells whether tasks follow that the response must not wait for.
    """

    hold_back: float | None = None
    background: Callable[[], bool] = _none

    @property
    def look_after(self) -> float:
        """Seconds after the beginning of a response at which it may have to go."""
        return STREAMS_AFTER if self.hold_back is None else self.hold_back

    def lets_go(self, *, complete: bool) -> bool:
        """Return whether a response goes after ``look_after`` seconds."""
        return self.hold_back is not None or not complete


def policy_of(hold_back: Duration | None) -> Policy:
    """Return the policy of an application. Raises ``ConfigurationError`` for what is no duration."""
    return Policy(None if hold_back is None else seconds("hold_back", hold_back))
