"""What the client sends: handed on in order, and watched for the client's leaving."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from .protocol import Message, Receive

LIMIT: Final = 64 * 1024
"""Bytes of a body that are read ahead, at most, to see whether the client is still there."""


class Inbox:
    """``receive`` for the application, and ``until_gone`` for those who wait meanwhile.

    Servers allow one ``receive`` at a time, and one that is cancelled may lose a message; so the
    server's is called in a task that nobody cancels, and what it brings goes to whoever asks next.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ahead: deque[Message] = deque()
        self._pending: asyncio.Task[Message] | None = None
        self._may_know = asyncio.Event()
        self._may_know.set()

    async def receive(self) -> Message:
        """The next message, for the application."""
        message = await self._next()
        if message["type"] == "http.disconnect":
            self._ahead.append(message)  # Whoever asks again is told again.
            await self._may_know.wait()
        return message

    def withhold_disconnect(self) -> None:
        """Keeps it from the application that its client has gone, so that it runs to its end."""
        self._may_know.clear()

    def tell_disconnect(self) -> None:
        """Lets the application know again."""
        self._may_know.set()

    async def until_gone(self) -> None:
        """Returns when the client has gone; never, if it sends more than ``LIMIT`` before."""
        size = 0
        while size < LIMIT:
            message = await self._from_server()
            self._ahead.append(message)
            if message["type"] in ("http.disconnect", "websocket.disconnect"):
                return
            size += len(message.get("body", b""))
        await asyncio.Event().wait()

    def close(self) -> None:
        """Ends the call that is under way: the response has been sent."""
        if self._pending:
            self._pending.cancel()

    async def _next(self) -> Message:
        if self._ahead:
            return self._ahead.popleft()
        if self._pending is None:
            return await self._receive()
        return await self._from_server()

    async def _from_server(self) -> Message:
        if self._pending is None:
            self._pending = asyncio.ensure_future(self._receive())
        pending = self._pending
        await asyncio.wait({pending})
        if self._pending is pending:
            self._pending = None
        return pending.result()
