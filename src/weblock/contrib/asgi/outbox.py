"""Sends to the client: the response is held back under a lock until the work is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..._face import BaseLease
from ..._platform.logs import logger
from ..kit.book import check_done
from .protocol import Message, Send

LIMIT: Final = 1024 * 1024
"""Bytes of a response that are held back, at most, while there is more to come."""

STREAMS_AFTER: Final = 1.0
"""Seconds after which a response that has begun, and is not complete, is taken for a stream."""


def never() -> bool:
    """Return that no task follows a response."""
    return False


@dataclass(slots=True)
class Policy:
    """When the response to a request that locks may go, although the application has not returned yet.

    A complete response waits until the application has returned, for until then the work that it
    reports may still fail to commit. It is let go earlier if it is a stream of events, if it passes
    ``LIMIT`` before its last part, or if its last part is late (``STREAMS_AFTER``, which counts from
    its first part where the headers tell its length).
    """

    hold_back: float | None
    """Seconds to which the waiting of a response is limited, complete or not."""
    background: Callable[[], object]
    """Returns whether background tasks follow the response, for which it must not wait."""
    leases: Sequence[BaseLease]
    """The leases of the request: when one of them is lost, the response must not report success."""

    def check(self) -> None:
        """Raise ``LeaseLost``, but not for a lease that the application itself has ended."""
        check_done(self.leases)


class Outbox:
    """``send`` for the application.

    With a ``policy``, the response stays here until ``finish`` or ``discard``, and one that
    ``promises`` something is not taken when a lease is lost: the loss is raised.
    """

    _size = 0
    _complete = False
    _is_open = False
    _timer: asyncio.Handle | None = None
    _letting_go: asyncio.Task[None] | None = None
    policy: Policy | None = None
    timing: bytes | None = None
    """The response's ``Server-Timing``."""
    sent = False
    """Whether a part of the response has been sent."""
    streams = False
    """Whether there is more to come after that."""
    on_stream: Callable[[], None] | None = None
    """Called at each part after which more is to come."""
    closed = False
    """Whether a websocket has been closed."""
    promises = True
    """Whether the response says that work was done, or refused: an error of the server does not."""

    def __init__(
        self, send: Send, follow_stream: Callable[[bool], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.loop = loop
        self._send = send
        self._follow_stream = follow_stream
        self._held: list[Message] = []

    def send(self, message: Message) -> Awaitable[None]:
        """Send or keep a message of the application. Raises ``LeaseLost``."""
        policy = self.policy
        if message["type"] == "http.response.start":
            self.promises = message["status"] < 500
            if policy:
                return self._begin_by(policy, message)
        elif policy:
            return self._go_on_by(policy, message)
        # Most requests lock nothing, and their messages go straight to the server.
        return self._pass_on(message)

    async def _begin_by(self, policy: Policy, start: Message) -> None:
        """Keep the beginning of a response, unless it is a stream of events."""
        fields = _fields(start)
        if self.timing:
            headers = [*start.get("headers", ()), (b"server-timing", self.timing)]
            start = {**start, "headers": headers}
        of_events = fields.get(b"content-type", b"").startswith(b"text/event-stream")
        if of_events or self._is_open or self.sent:
            await self._go_on_by(policy, start)
        else:
            self._begin_to_hold(start, policy, has_length=b"content-length" in fields)

    async def _go_on_by(self, policy: Policy, message: Message) -> None:
        if self.promises:
            policy.check()
        if not (self._is_open or self.sent):
            self._hold(message, policy)
            if self._letting_go:
                await asyncio.shield(self._letting_go)
            return
        if self._letting_go:
            await asyncio.wait({self._letting_go})
        await self._pass_on(message)

    async def finish(self) -> None:
        """Send what was held back: the application has ended."""
        if self._timer:
            self._timer.cancel()
        self._is_open = True
        if self._letting_go:
            await asyncio.shield(self._letting_go)
        elif self._held:
            held, self._held = self._held, []
            await self._send_all(held)
        self._send = _nowhere  # For the reason that ``Inbox.close`` has.

    def discard(self) -> None:
        """Drop what was held back: another response takes its place."""
        self._stop_holding()
        self._held = []

    async def close(self) -> None:
        """Drop what was held back, and wait for what is being sent."""
        self.discard()
        if self._letting_go:
            await asyncio.wait({self._letting_go})
        self._send = _nowhere

    async def abort(self) -> None:
        """Send nothing more: the server has cancelled the request."""
        if self._letting_go:
            self._letting_go.cancel()
        await self.close()

    def _begin_to_hold(self, start: Message, policy: Policy, *, has_length: bool) -> None:
        self._held.append(start)
        self._complete = False
        # A response that says how long it is, is most often sent at once and complete.
        if not has_length or policy.hold_back is not None:
            self._timer = self.loop.call_soon(self._expect_the_rest, policy)

    def _expect_the_rest(self, policy: Policy) -> None:
        """Limit the wait. Most responses are complete before this is called, and need no timer."""
        after = STREAMS_AFTER if policy.hold_back is None else policy.hold_back
        self._timer = self.loop.call_later(after, self._let_go_in_time, policy)

    def _hold(self, message: Message, policy: Policy) -> None:
        """Keep a message until the work is done, or begin to send it with all before it."""
        self._held.append(message)
        self._size += len(message.get("body", b""))
        is_stream = message["type"] == "http.response.start"  # One of events: others are held.
        self._complete = not is_stream and not message.get("more_body", False)
        if not self._complete and not is_stream and self._timer is None:
            self._expect_the_rest(policy)
        elif self._complete and policy.hold_back is None and self._timer:
            self._timer.cancel()
        if is_stream or (policy.background() if self._complete else self._size > LIMIT):
            self._begin_to_let_go()

    def _let_go_in_time(self, policy: Policy) -> None:
        if policy.hold_back is not None or not self._complete:
            self._begin_to_let_go()

    def _begin_to_let_go(self) -> None:
        self._stop_holding()
        if self._held:
            self.sent = True
            held, self._held = self._held, []
            self._letting_go = asyncio.ensure_future(self._send_all(held))

    async def _send_all(self, messages: list[Message]) -> None:
        try:
            for message in messages:
                await self._pass_on(message)
        except OSError:
            logger.debug("a client left before it had its response", exc_info=True)

    def _pass_on(self, message: Message) -> Awaitable[None]:
        self.sent = True
        if message["type"] == "http.response.body":
            # A stream may be endless, and ends when nobody wants it any more. What follows its last
            # part, a commit say, must not be ended so.
            goes_on = message.get("more_body", False)
            if goes_on or self.streams:
                self._follow_stream(goes_on)
            self.streams = goes_on
            if goes_on and self.on_stream:
                self.on_stream()
        elif message["type"] == "websocket.close":
            self.closed = True
        return self._send(message)

    def _stop_holding(self) -> None:
        self._is_open = True
        if self._timer:
            self._timer.cancel()


async def _nowhere(message: Message) -> None:
    """Sends nothing: the exchange is over."""


def _fields(start: Message) -> dict[bytes, bytes]:
    """Return the headers of a response by their lower-case names; of several, the last."""
    return {name.lower(): value for name, value in start.get("headers", ())}
