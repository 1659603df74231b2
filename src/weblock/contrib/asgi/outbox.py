"""What the client is sent: held back, where a lock is held, until the work is known to be done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from .protocol import Message, Send

LIMIT: Final = 1024 * 1024
"""Bytes of a response that are held back, at most."""


class Outbox:
    """``send`` for the application.

    With ``hold_back``, the response stays here until ``let_go`` or ``discard``. It is let go
    earlier if it is a stream of events, if it is larger than ``LIMIT``, if it is complete and
    ``work_goes_on`` says that background tasks follow, or if the application has not returned
    ``hold_back`` seconds after it began to answer.
    """

    def __init__(self, send: Send, work_goes_on: Callable[[], bool]) -> None:
        self._send = send
        self._work_goes_on = work_goes_on
        self._held: list[Message] = []
        self._size = 0
        self._holding = False
        self._hold_for = 0.0
        self._order = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._letting_go: asyncio.Task[None] | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.sent = False

    @property
    def held_status(self) -> int | None:
        """The status of the response that is held back, if there is one."""
        return self._held[0]["status"] if self._held else None

    def hold_back(self, seconds: float) -> None:
        """Keeps what is sent from now on, if nothing has been sent yet."""
        self._holding = not self.sent
        self._hold_for = seconds

    async def send(self, message: Message) -> None:
        """Sends or keeps a message of the application."""
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *self.headers]}
        if not self._holding:
            await self._pass_on(message)
            return
        self._held.append(message)
        self._size += len(message.get("body", b""))
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._hold_for, self._let_go_soon)
        if self._must_not_wait(message):
            await self.let_go()

    async def let_go(self) -> None:
        """Sends what was held back, and from now on everything at once."""
        self._holding = False
        async with self._order:
            held, self._held = self._held, []
            for message in held:
                self.sent = True
                await self._send(message)

    def discard(self) -> None:
        """Forgets what was held back: another answer takes its place."""
        self._holding = False
        self._held = []

    async def close(self) -> None:
        """Waits for what is being sent."""
        if self._timer:
            self._timer.cancel()
        if self._letting_go:
            await self._letting_go

    async def _pass_on(self, message: Message) -> None:
        async with self._order:
            self.sent = True
            await self._send(message)

    def _let_go_soon(self) -> None:
        if self._holding:
            self._letting_go = asyncio.ensure_future(self.let_go())

    def _must_not_wait(self, message: Message) -> bool:
        if message["type"] == "http.response.start":
            return _is_event_stream(message)
        complete = not message.get("more_body", False)
        return self._size > LIMIT or (complete and self._work_goes_on())


def _is_event_stream(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in start.get("headers", ())
    )
