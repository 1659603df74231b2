"""What the client is sent: held back, where a lock is held, until the work is known to be done."""

from __future__ import annotations

import asyncio
from typing import Final

from ..._platform.logs import logger
from .inbox import Inbox
from .policy import Policy
from .protocol import Message, Send
from .request import RequestLocks

LIMIT: Final = 1024 * 1024
"""Bytes of a response that are held back, at most, while there is more to come."""


class Outbox:
    """``send`` for the application.

    Where the request has a ``policy``, the response stays here until ``finish`` or ``discard``.
    It is let go earlier if it is a stream of events, if it passes ``LIMIT`` before its last part, or
    if the policy says so.

    A response that ``promises`` something is not taken when a lease is lost: the loss is raised.
    """

    __slots__ = (
        "_complete",
        "_held",
        "_inbox",
        "_is_open",
        "_letting_go",
        "_request",
        "_send",
        "_size",
        "_timer",
        "closed",
        "promises",
        "sent",
    )

    def __init__(self, send: Send, request: RequestLocks, inbox: Inbox) -> None:
        self._send = send
        self._request = request
        self._inbox = inbox
        self._held: list[Message] = []
        self._size = 0
        self._complete = False
        self._is_open = False
        self._timer: asyncio.TimerHandle | None = None
        self._letting_go: asyncio.Task[None] | None = None
        self.sent = False
        self.closed = False
        self.promises = True

    @property
    def busy(self) -> bool:
        """Whether something is held back, or on its way."""
        return bool(self._held or self._letting_go)

    async def send(self, message: Message) -> None:
        """Sends or keeps a message of the application. Raises ``LeaseLost``."""
        request = self._request
        if request.headers and message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *request.headers]}
        if request.policy is not None:
            self._refuse_if_lost(message)
            if not self.sent and not self._is_open:
                await self._keep(message, request.policy)
                return
        if self._letting_go:
            await asyncio.wait({self._letting_go})
        await self._pass_on(message)

    async def let_go(self) -> None:
        """Sends what was held back, and from now on everything at once."""
        self._begin_to_let_go()
        if self._letting_go:
            await asyncio.shield(self._letting_go)

    async def finish(self) -> None:
        """Sends what was held back: the application has ended."""
        self._stop_holding()
        if self._letting_go:
            await asyncio.shield(self._letting_go)
        elif self._held:
            held, self._held = self._held, []
            await self._send_all(held)

    def discard(self) -> None:
        """Forgets what was held back: another answer takes its place."""
        self._stop_holding()
        self._held = []

    async def close(self) -> None:
        """Forgets what was held back, and waits for what is being sent."""
        self.discard()
        if self._letting_go:
            await asyncio.wait({self._letting_go})

    def abort(self) -> None:
        """Sends nothing more: the server does not want it."""
        self.discard()
        if self._letting_go:
            self._letting_go.cancel()

    async def _keep(self, message: Message, policy: Policy) -> None:
        self._held.append(message)
        self._size += len(message.get("body", b""))
        if self._must_not_wait(message, policy):
            await self.let_go()
        elif self._timer is None and policy.lets_go(complete=self._complete):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(policy.look_after, self._let_go_in_time, policy)

    def _let_go_in_time(self, policy: Policy) -> None:
        if policy.lets_go(complete=self._complete):
            self._begin_to_let_go()

    def _refuse_if_lost(self, message: Message) -> None:
        """An error of the server promises nothing. A refusal does: it was decided in vain."""
        if message["type"] == "http.response.start":
            self.promises = message["status"] < 500
        if self.promises and (loss := self._request.loss()):
            raise loss

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

    async def _pass_on(self, message: Message) -> None:
        self.sent = True
        self.closed = message["type"] == "websocket.close"
        if message.get("more_body"):
            # A stream, which may be endless, ends when nobody wants it any more.
            self._request.streams = True
            self._inbox.tell_disconnect()
        await self._send(message)

    def _stop_holding(self) -> None:
        self._is_open = True
        if self._timer:
            self._timer.cancel()

    def _must_not_wait(self, message: Message, policy: Policy) -> bool:
        if message["type"] == "http.response.start":
            return _is_event_stream(message)
        self._complete = not message.get("more_body", False)
        if self._complete:
            return policy.background()
        return self._size > LIMIT


def _is_event_stream(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in start.get("headers", ())
    )
