"""The input policy: how long a request that locks waits for its body.

Otherwise any client could hold a key for as long as its connection lives, by sending its body one byte at a
time. So a body is read before the key is acquired, up to ``AHEAD`` bytes of it; the application reads the
rest while it holds the key. Each ``AHEAD`` bytes must arrive while the request waits for ``body_wait`` seconds
in total; otherwise the request ends with ``BodyTimeout``. The time in which the application does not wait for
its client does not count.
"""

from __future__ import annotations

from typing import Final

from ..._options import Duration, seconds
from ...errors import BodyTimeout

AHEAD: Final = 64 * 1024
"""About how many bytes of a body are read before a key is acquired, and must arrive in ``body_wait``."""

BODY_WAIT: Final = 5.0
"""The default of ``body_wait``, in seconds."""


class Patience:
    """How long a request still waits for its body."""

    def __init__(self, body_wait: float) -> None:
        self.body_wait = self.left = body_wait
        """Seconds: for each part of the body, and for the rest of the current part."""
        self._size = 0

    def note(self, waited: float, size: int, *, in_time: bool) -> None:
        """Record that the request has waited, in seconds, for a part of its body, in bytes.

        ``in_time`` tells that the part arrived within the limit, though a busy process noticed it later.
        Raises ``BodyTimeout`` if it has waited for too long.
        """
        if in_time and waited >= self.left:
            waited = self.left / 2  # Nobody knows how much of it the client has taken.
        self.left -= waited
        if self.left <= 0:
            raise BodyTimeout(self.body_wait)
        self._size += size
        if self._size >= AHEAD:
            self._size, self.left = 0, self.body_wait


def seconds_or_none(name: str, value: Duration | None) -> float | None:
    """Return a limit in seconds. Raises ``ConfigurationError`` if it is not a duration."""
    return None if value is None else seconds(name, value)
