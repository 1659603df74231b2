"""Links: the connections to servers, as both APIs use them.

redis-py opens a connection, with TLS and passwords, and hands its socket over (``internals``). From then
on it belongs to one of two drivers, which send commands and match replies to them by their order:

- ``blocking``: a thread takes a link out of a pool for the length of one round trip.
- ``aio``: all tasks of an event loop share one link to each server.

A request ends with its replies, of which each may be an error reply, or it fails with redis-py's
``ConnectionError`` or ``TimeoutError``. Then nobody knows whether the server has executed it. A request
that a server did execute, and whose caller is gone, does no harm: see ``store``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol

import hiredis
from redis import exceptions
from redis.connection import DefaultParser

from ..transport.turns import turns
from .settings import Address

if TYPE_CHECKING:
    from .aio import Loan
    from .blocking import BlockingLink

Outcome = Any
"""What a script returned, or the exception that says why it did not."""

INCOMPLETE: Final = object()
"""What a reader returns for a reply that has not come to its end."""


class Errors(DefaultParser):  # type: ignore[valid-type,misc]  # It is one of two classes.
    """redis-py's classes for error replies. Its older releases know those of a cluster only in their cluster client."""

    EXCEPTION_CLASSES = {  # noqa: RUF012 - redis-py's
        **DefaultParser.EXCEPTION_CLASSES,
        "ASK": exceptions.AskError,
        "CLUSTERDOWN": exceptions.ClusterDownError,
        "CROSSSLOT": exceptions.ClusterCrossSlotError,
        "MASTERDOWN": exceptions.MasterDownError,
        "MOVED": exceptions.MovedError,
        "TRYAGAIN": exceptions.TryAgainError,
    }


def new_reader() -> hiredis.Reader:
    """Return what makes replies out of the bytes that a server sends."""
    return hiredis.Reader(replyError=Errors.parse_error, notEnoughData=INCOMPLETE)


class Link(Protocol):
    """A connection to one server, used by one caller at a time or by many at once."""

    address: Address
    incarnation: str
    """The name of its server's run in the scripts."""

    def ask(self, command: bytes) -> Awaitable[Outcome]:
        """Send one command, and return its reply, as ``exchange`` does."""

    async def exchange(self, commands: Sequence[bytes]) -> list[Any]:
        """Send commands together, and return their replies; an error reply is an exception.

        Raises redis-py's ``ConnectionError`` or ``TimeoutError``; then the link is of no more use.
        """

    def discard(self) -> None:
        """End the connection, and everything under way on it."""


Introduce = Callable[[Link], Awaitable[None]]
"""Says and asks on a new connection what comes first there."""


class Links:
    """The links of one API."""

    free: SimpleQueue[None] = turns(0)
    """The permits to use a connection: see ``turns``. The caller puts back what is in its list."""

    @property
    def process(self) -> str:
        """The channel on which the waiters here are notified."""
        raise NotImplementedError

    def at_once(self, address: Address, permits: list[None]) -> Link | None:
        """Return a connection that is ready for use, or ``None`` if there is none.

        It may have taken a permit in both cases, which is in ``permits`` then.
        """
        raise NotImplementedError

    def take(self, address: Address, introduce: Introduce, permits: list[None]) -> Awaitable[Link]:
        """Return a connection, which may have to be made or waited for.

        Takes a permit unless there is one in ``permits``.
        """
        raise NotImplementedError

    def give_back(self, link: Link) -> None:
        """Keep a connection for the next caller, or drop one that has failed."""

    def lend(self, address: Address) -> BlockingLink | Loan | None:
        """Return the next connection that is free, for the keeper, which gives it back soon."""

    def listen(self) -> None:
        """Start to receive notifications."""

    def aside(self, work: Callable[[], None]) -> Awaitable[None]:
        """Run something that blocks, without delaying other callers.

        It does the same each time: callers that come while it runs wait for its end.
        """
        raise NotImplementedError

    def together(self, works: Sequence[Coroutine[Any, Any, None]]) -> Awaitable[None]:
        """Run several coroutines side by side, none of which raises."""
        raise NotImplementedError

    def move(self) -> None:
        """Listen for notifications elsewhere, if their server is gone. From any thread."""

    def tidy(self) -> None:
        """End connections that only a rush needed. May be called from any thread."""

    def close(self) -> None:
        """End all connections, and those in use when they come back."""
