"""Receives from the client: passes messages on in order, and notices a disconnect."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Final

from ..kit.problems import ClientGone
from .protocol import Message, Receive

LIMIT: Final = 64 * 1024
"""About how many bytes are read ahead at most, to see whether the client is still connected."""

MESSAGE_SIZE: Final = 64
"""Bytes that each message counts in addition to its payload: many may be empty."""

LOOK_AFTER: Final = 0.05
"""Seconds of waiting after which to check whether the client is still connected."""


class Inbox:
    """``receive`` for the application, and ``until_gone`` to wait for a disconnect meanwhile.

    Servers allow one ``receive`` at a time, and a cancelled one may lose a message. So while
    messages are read ahead, the server's ``receive`` is called in a task that is never cancelled,
    and what it returns is kept for the application.
    """

    _room = LIMIT
    _pending: asyncio.Task[None] | None = None
    _reading = False
    _direct: asyncio.Future[None] | None = None
    _gone = False
    _whole = False
    _withheld: asyncio.Event | None = None
    _streams = False
    withholds = False
    """Whether a disconnect is hidden from the application, so that it runs to its end.

    An application that has not received the whole body still sees it, because it may be waiting for
    the rest; and one that streams, because it may stream until nobody listens any more; and one that
    waits for a key by itself, of which nothing runs meanwhile.
    """
    _waits = 0
    turn: asyncio.Future[None] | None = None
    """Done when the task of the request that acquires at this moment has done so."""
    waiter: asyncio.Task[object] | None = None
    """The task of the request that waits for a key at this moment."""
    _timer: asyncio.Handle
    _watch: asyncio.Task[None] | None = None
    _cancelled_before = 0
    _gave_up = False
    _unwanted = False

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ahead: deque[Message] = deque()

    async def receive(self) -> Message:
        """Return the next message, for the application."""
        while not self._ahead:
            if self._pending is None:
                self._ahead.append(await self._directly())
            else:
                await self._until_more()
        message = self._ahead.popleft()
        self._room += _size(message)
        if message["type"] == "http.request":
            self._whole = not message.get("more_body", False)
        elif message["type"] == "http.disconnect":
            self._ahead.append(message)  # It is returned to every further call.
            while self._whole and self.withholds and not (self._streams or self._waits):
                self._withheld = self._withheld or asyncio.Event()
                await self._withheld.wait()
        return message

    def follow_stream(self, goes_on: bool) -> None:  # noqa: FBT001 - a callback
        """Tell a disconnect to an application that streams. What follows the last part must not end."""
        self._streams = goes_on
        if goes_on:
            self._tell()

    def follow_wait(self, goes_on: bool) -> None:  # noqa: FBT001 - as above
        """Tell a disconnect to an application whose own lock waits, until that is over."""
        self._waits += 1 if goes_on else -1
        if goes_on:
            self._tell()

    def _tell(self) -> None:
        if self._withheld:
            self._withheld.set()
            self._withheld = None

    async def until_gone(self) -> None:
        """Return when the client has disconnected, unless it first sends more than ``LIMIT``."""
        while not self._gone and self._room > 0:
            if self._reading:
                self._direct = self._direct or asyncio.get_running_loop().create_future()
                await asyncio.wait({self._direct})
            else:
                await self._until_more()
        if not self._gone:
            await asyncio.get_running_loop().create_future()

    async def begin_watch(self) -> None:
        """Cancel the running task, which begins to wait for a key, if the client leaves meanwhile."""
        self.waiter = task = asyncio.current_task()
        assert task is not None
        self._cancelled_before = task.cancelling()
        look = self._give_up if self._unwanted else self._look
        self._timer = asyncio.get_running_loop().call_later(LOOK_AFTER, look)

    def refuse_if_gone(self, error: BaseException) -> None:
        """Raise ``ClientGone`` if the wait was cancelled for just that reason."""
        waiter = self.waiter
        if not (waiter and self._gave_up and isinstance(error, asyncio.CancelledError)):
            return
        if waiter.cancelling() - 1 <= self._cancelled_before:
            raise ClientGone from None

    def end_watch(self) -> None:
        """Stop watching: the wait is over."""
        self._timer.cancel()
        if self._watch:
            self._watch.cancel()
        if self.waiter and self._gave_up:
            self.waiter.uncancel()
        self.waiter, self._watch, self._gave_up = None, None, False

    def leave(self) -> None:
        """Wait for no key any more: the server has cancelled the request."""
        self._unwanted = True
        self._give_up()

    def _look(self) -> None:
        self._watch = asyncio.ensure_future(self.until_gone())
        self._watch.add_done_callback(self._is_gone)

    def _is_gone(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled():
            watch.exception()  # A server that cannot receive has no client any more.
        if watch is self._watch:  # Otherwise the wait is over.
            self._give_up()  # Also if the request has ended while a thread of it still waits.

    def _give_up(self) -> None:
        if self.waiter and not self._gave_up:
            self._gave_up = True
            self.waiter.cancel()

    def close(self, kind: str) -> None:
        """End the call that is under way: the response is complete.

        The inbox then refers to the server no more. A server's ``receive`` refers to the scope, and the
        scope to the inbox: such a cycle per request would be left to the garbage collector.
        """
        self._receive = _NOTHING_MORE[kind]
        if self.withholds:
            self.withholds = False
            self._tell()
        if self._pending:
            self._pending.cancel()

    async def _directly(self) -> Message:
        """Read for the application; what waits for a disconnect meanwhile waits for this read."""
        self._reading = True
        try:
            message = await self._receive()
            self._note(message)
        finally:
            self._reading = False
            if self._direct:
                self._direct.set_result(None)
                self._direct = None
        return message

    async def _until_more(self) -> None:
        if self._pending is None:
            self._pending = asyncio.ensure_future(self._read_ahead())
        pending = self._pending
        await asyncio.wait({pending})
        pending.result()

    async def _read_ahead(self) -> None:
        try:
            message = await self._receive()
        finally:
            self._pending = None
        self._ahead.append(message)
        self._note(message)

    def _note(self, message: Message) -> None:
        self._room -= _size(message)
        self._gone = message["type"] in ("http.disconnect", "websocket.disconnect")


async def _nothing_more(kind: str) -> Message:
    return {"type": f"{kind}.disconnect"}


_NOTHING_MORE: Final = {kind: partial(_nothing_more, kind) for kind in ("http", "websocket")}
"""What ``receive`` is after a response of each kind."""


def _size(message: Message) -> int:
    payload = message.get("body") or message.get("bytes") or message.get("text") or b""
    return MESSAGE_SIZE + len(payload)
