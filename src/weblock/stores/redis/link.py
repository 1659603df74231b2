"""A connection to one server, without its socket: two drivers add that, and how a caller waits.

1. redis-py opens the connection, with TLS and passwords, and hands its socket over (``internals``).
2. A driver sends commands, and notes in ``_in_flight`` to which request the reply to each belongs.
3. ``_arrived`` gives what has come to the oldest requests, because a server answers in the order of the
   commands. A request that no caller waits for any more keeps its place, so its reply is dropped and
   not taken for that of the next. Notifications belong to no request.
4. A connection fails once: it was lost, it was silent for ``timeout`` seconds, or it sent what is no
   reply. All requests in flight get that ``failure``. The server may have executed them or not.

``blocking`` is the driver for threads, of which each has a connection for the length of a round trip.
``aio`` is the one for event loops, whose tasks share one connection to each server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import hiredis
from redis import exceptions
from redis.connection import DefaultParser

from ..._core.ports import CheckAgain, Switchboard
from ..transport.listener import from_notification
from ..transport.pool import turns
from .settings import Address

if TYPE_CHECKING:
    from .aio import Loan
    from .blocking import BlockingLink

R = TypeVar("R")

Outcome = Any
"""What a script returned, or the exception that says why it did not."""

INCOMPLETE: Final = object()
"""What a reader returns for a reply that has not come to its end."""

NOT_NOTIFIED: Final = (
    "callers that wait for locks get no notifications, and poll once a second instead: %s"
    " [weblock.no_notifications]"
)


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


class Subscription(NamedTuple):
    """How the waiters of a thread or a loop are notified when their turn has come."""

    channel: str
    switchboard: Switchboard
    serves: Callable[[Address], bool]
    """Returns whether a server publishes what its waiters need."""
    trusted: bool = True
    """Whether a notification is a lease. Where that counts only with replicas, the waiter has to ask."""

    def pass_on(self, pushed: Any) -> None:
        """Pass on what a subscription has received.

        What is no notification is dropped: any client with the right to publish may send it.
        """
        match pushed:
            case [b"message", _, bytes() as payload]:
                if found := from_notification(payload.decode(errors="replace")):
                    owner, message = found
                    self.switchboard.notify(owner, message if self.trusted else CheckAgain())
            case [b"subscribe", *_]:  # A notification may have been lost before.
                self.switchboard.notify_all(CheckAgain())


class Link(Generic[R]):
    """One connection, from its handshake on. ``R`` is a request in flight, as the driver notes it.

    A caller gets replies, of which an error reply is an exception, or redis-py's ``ConnectionError`` or
    ``TimeoutError``. Then the link is of no more use, and it is unknown what the server has executed.
    """

    incarnation: str
    """The name of its server's run in the scripts."""

    def __init__(
        self, address: Address, timeout: float, subscription: Subscription | None = None
    ) -> None:
        self.address = address
        self.timeout = timeout
        self.home = Links()
        """The pool that it belongs to, also while it is lent. One of an event loop belongs to none."""
        self.failure: Exception | None = None
        reader = hiredis.Reader(replyError=Errors.parse_error, notEnoughData=INCOMPLETE)
        self._feed, self._next_reply = reader.feed, reader.gets
        self._in_flight: deque[R] = deque()
        """For each reply that the server owes us, in its order, the request that it belongs to."""
        self._subscription = subscription

    def ask(self, command: bytes) -> Awaitable[Outcome]:
        """Send one command, and return its reply."""
        raise NotImplementedError

    def exchange(self, commands: Sequence[bytes]) -> Awaitable[list[Outcome]]:
        """Send commands together, and return their replies."""
        raise NotImplementedError

    def discard(self) -> None:
        """End the connection, and everything under way on it."""
        self._end(exceptions.ConnectionError("the connection was closed"))

    def no_answer(self) -> Exception:
        return exceptions.TimeoutError(f"no answer for {self.timeout:g} s")

    def _arrived(self, *data: Any) -> list[tuple[R, Outcome]]:
        """Return the replies that are complete now, each with its request. Pushes are passed on."""
        answered: list[tuple[R, Outcome]] = []
        try:
            self._feed(*data)
            for reply in iter(self._next_reply, INCOMPLETE):
                if isinstance(reply, hiredis.PushNotification):
                    if self._subscription:
                        self._subscription.pass_on(reply)
                    if reply[0] != b"subscribe":  # Which is also the reply to the command.
                        continue
                answered.append((self._in_flight.popleft(), reply))
        except (hiredis.ProtocolError, IndexError) as error:
            text = f"the server violates the protocol: {error}"
            self._end(exceptions.InvalidResponse(text))
        return answered

    def _end(self, failure: Exception) -> None:
        """End the connection for this reason, unless it has ended. Tells the requests in flight."""
        raise NotImplementedError


Introduce = Callable[[Link[Any]], Awaitable[None]]
"""Says and asks on a new connection what comes first there, or discards it and raises an error."""


class Links:
    """The links of one API."""

    free: SimpleQueue[None] = turns(0)
    """The permits to use a connection: see ``turns``. The caller puts back what is in its list."""

    @property
    def process(self) -> str:
        """The channel on which the waiters here are notified."""
        raise NotImplementedError

    def take(
        self, address: Address, permits: list[None], introduce: Introduce, *, beside: bool = False
    ) -> Awaitable[Link[Any]]:
        """Return a connection, which may have to be made or waited for.

        Takes a permit unless there is one in ``permits``. ``beside`` is for a request in ``together``.
        """
        raise NotImplementedError

    def give_back(self, link: Any) -> None:
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
        """Run several requests side by side, none of which raises."""
        raise NotImplementedError

    def move(self) -> None:
        """Leave a server that is no longer one of ours: listen elsewhere, close what is open. From any thread."""

    def close(self) -> None:
        """End all connections, and those in use when they come back."""
