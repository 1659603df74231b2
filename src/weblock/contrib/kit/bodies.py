"""How long a request that locks waits for its body, and when its response may go to its client.

*The request.* Any client could otherwise hold a key for as long as its connection lives, by sending its body one
byte at a time. So a body is read before the key is acquired, up to ``AHEAD`` bytes of it; the application reads the
rest while it holds the key. Each ``AHEAD`` bytes must arrive while the request waits for ``body_wait`` seconds
in total; otherwise the request ends with ``BodyTimeout``. The time in which the application does not wait for
its client does not count.

*The response* is held back until the application has ended, for until then the work that it reports may fail
to commit; then the locks are released, and only then it is sent, so that a slow client keeps no lock. Three
kinds of responses are sent as they are made, and hold their locks until they end: a stream of events, a
response that passes ``LIMIT`` before its last part, and one that goes on for ``STREAMS_AFTER``.

A response that *promises* something says that work was done, or refused. When a lease is lost, a part of it
is not taken from the application: ``LeaseLost`` is raised instead. An error of the server promises nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ..._api import BaseLease
from ..._options import Duration, seconds
from ...errors import BodyTimeout, LeaseLost

LIMIT: Final = 1024 * 1024
"""Bytes of a response that are held back, at most, while there is more to come."""

STREAMS_AFTER: Final = 1.0
"""Seconds from its first part after which a response that goes on is taken for a stream."""

SENT_TOO_EARLY: Final = (
    "a response had already been sent when weblock detected that the %s [weblock.loss_unreported]"
)

ENDED_HERE: Final = frozenset({"released", "handed_over"})
"""The reasons of leases that the application itself has ended."""


class Output:
    """The response to one request. An adapter derives from it, and sends what may be sent."""

    leases: Sequence[BaseLease] | None = None
    """The leases of the request; ``None`` while it locks nothing, and nothing is held back."""
    waited: float | None = None
    """Seconds that the request has waited for its keys."""
    at_end: Sequence[Callable[[int], Awaitable[None]]] = ()
    """Called with the status of a response before the end of it is sent: see ``Execution.end``."""
    status = 0
    promises = True
    sent = False
    """Whether a part of the response has been sent."""
    is_open = False
    """Whether the response is sent as it is made."""
    _size = 0
    _is_event_stream = False

    def begin(self, status: int, content_type: str) -> bool:
        """Take note of a response that begins; return whether it must not be held back."""
        self.status, self.promises = status, status < 500
        self._is_event_stream = content_type.startswith("text/event-stream")
        self._size = 0
        return self._is_event_stream

    def streams(self, seconds: float = 0.0) -> bool:
        """Return whether a response that goes on must not be held back any more.

        ``seconds`` have passed since its first part.
        """
        return self._is_event_stream or self._size > LIMIT or seconds > STREAMS_AFTER

    async def keep_answer(self) -> None:
        """Keep the answer of a request that is executed once."""
        for each in self.at_end:
            await each(self.status)

    def check(self) -> None:
        """Raise ``LeaseLost`` if the response promises what might not be true."""
        if self.promises and self.leases:
            check_done(self.leases)


def check_done(leases: Sequence[BaseLease]) -> None:
    """Raise ``LeaseLost`` if a lease was lost, but not if the application itself has ended it.

    An application may release a lease early, or hand it over to a worker, and then respond.
    """
    for lease in leases:
        try:
            lease.check()
        except LeaseLost as loss:
            if loss.reason not in ENDED_HERE:
                raise


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
