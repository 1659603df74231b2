"""The client of a request: what it sends, whether it is still there, and what it is sent."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from ..._platform.logs import logger
from ...errors import LeaseLost
from ..kit import AHEAD, ClientGone, Output, Patience, bodies
from .protocol import Message, Receive, Scope, Send

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

    _room = AHEAD
    _pending: asyncio.Task[None] | None = None
    _reading = False
    _direct: asyncio.Future[None] | None = None
    _gone = False
    _whole = False
    _withheld: asyncio.Event | None = None
    _streams = False
    _is_over = False
    withholds = False
    """Whether a disconnect is hidden from the application, so that it runs to its end.

    An application that has not received the whole body still sees it, because it may be waiting for
    the rest; and one that streams, because it may stream until nobody listens any more; and one that
    waits for a key by itself, of which nothing runs meanwhile; and one that only asks.

    After the last part of a stream, it sees one even if the server has not told it, for the stream may be held
    back: an application that listens while it streams, as Litestar's does, ends only then.
    """
    cut_off = False
    """Whether the server has cancelled the request while it held a lock, so that it runs to its end.

    What waits for the client waits no longer: the rest of a body or a message of a websocket does not
    come, and what is sent at once, as part of a stream or to a websocket, fails.
    """
    _over: asyncio.Future[None] | None = None
    """Done when an application that waits for a message is to check whether it may still get one."""
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
    _is_read_ahead = False
    _arrived = False
    """Whether the end of the body has arrived."""
    _patience: Patience | None = None

    def __init__(self, receive: Receive, scope: Scope, body_wait: float | None) -> None:
        self._receive = receive
        self._scope = scope
        self.body_wait = body_wait if scope["type"] == "http" else None
        """How long to wait for a part of the body: see ``Patience``."""
        self._ahead: list[Message] = []

    async def receive(self) -> Message:
        """Return the next message, for the application."""
        is_question = (self.withholds or self._whole) and await self._is_question()
        while not self._ahead:
            if self._is_over or (self.cut_off and (is_question or not self._whole)):
                return {"type": f"{self._scope['type']}.disconnect"}
            is_limited = self.withholds or (self._patience and not self._whole)
            # Also one that listens before a key is acquired gets the end of the response.
            if is_limited or self._whole:
                self._over = self._over or asyncio.get_running_loop().create_future()
                if self.withholds and self.body_wait is not None and not self._patience:
                    self._patience = Patience(self.body_wait)
                await self._until_more(None if self._whole else self._patience, self._over)
            elif self._pending is None:
                # What waits for a disconnect meanwhile waits for this read.
                self._reading = True
                try:
                    message = await self._receive()
                    self._note(message)
                finally:
                    self._reading = False
                    if self._direct:
                        self._direct.set_result(None)
                        self._direct = None
                self._ahead.append(message)
            else:
                await self._until_more()
        message = self._ahead.pop(0)
        self._room += _size(message)
        if message["type"] == "http.request":
            self._whole = not message.get("more_body", False)
        elif message["type"] == "http.disconnect":
            self._ahead.append(message)  # It is returned to every further call.
            while (
                self._whole
                and self.withholds
                and not (is_question or self._streams or self._waits or self._is_over)
            ):
                self._withheld = self._withheld or asyncio.Event()
                await self._withheld.wait()
        return message

    async def _is_question(self) -> bool:
        """Return whether the caller asks what has arrived, and waits for nothing.

        So does ``Request.is_disconnected`` of Starlette, in a cancel scope of anyio that is cancelled already.
        """
        anyio = sys.modules.get("anyio")
        if anyio is None or anyio.current_effective_deadline() != -math.inf:
            return False
        if not (self._ahead or self._reading):
            self._pending = self._pending or asyncio.ensure_future(self._read_ahead())
            with anyio.CancelScope(shield=True):
                # A server that knows of a disconnect does not wait to return it.
                await asyncio.sleep(0)
        return True

    def begin_stream(self) -> None:
        """Tell a disconnect to an application that streams."""
        self._streams = True
        self._tell()

    def end_stream(self) -> None:
        """Tell a disconnect to an application that has made the last part of its response."""
        self._streams, self._is_over = False, True
        self._look_again()
        self._tell()

    def cut(self) -> None:
        """Let what waits for the client wait no longer: see ``cut_off``."""
        self.cut_off = True
        self._look_again()

    def _look_again(self) -> None:
        if self._over:
            self._over.set_result(None)
            self._over = None

    def follow_wait(self, goes_on: bool) -> None:  # noqa: FBT001 - a callback
        """Tell a disconnect to an application whose own lock waits, until that is over."""
        self._waits += 1 if goes_on else -1
        if goes_on:
            self._tell()

    def _tell(self) -> None:
        if self._withheld:
            self._withheld.set()
            self._withheld = None

    async def read_ahead(self, inbox: Inbox) -> None:
        """Return when the body has arrived, or ``AHEAD`` bytes of it, if it was not read ahead before.

        ``inbox`` is of the request that locks, and has the limit: this one, or one farther in.
        Raises ``BodyTimeout``, and ``ClientGone`` if the client leaves before.
        """
        if self._is_read_ahead or inbox.body_wait is None:
            return
        # Only HTTP/1 says in its headers whether there is a body.
        fields = dict(self._scope.get("headers", ()))
        is_empty = fields.get(b"content-length", b"0") == b"0"
        if (
            is_empty
            and b"transfer-encoding" not in fields
            and self._scope.get("http_version", "1.1") < "2"
        ):
            inbox.body_wait = None  # A caller that listens later waits for a disconnect.
            return
        patience = Patience(inbox.body_wait)
        while self._room > 0 and not self._arrived:
            if self._gone:
                raise ClientGone
            await self._until_more(patience)
        self._is_read_ahead = True
        if not self._arrived:  # Also where the rest is read before the key is acquired.
            inbox._patience = patience

    async def until_gone(self) -> None:
        """Return when the client has disconnected, unless it first sends more than ``AHEAD``."""
        while not self._gone and self._room > 0:
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

    def refuse_if_gone(self) -> None:
        """Raise ``ClientGone`` if the wait was cancelled for just that reason."""
        waiter = self.waiter
        if waiter and self._gave_up and waiter.cancelling() - 1 <= self._cancelled_before:
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

    def close(self) -> None:
        """End the call that is under way: the response is complete.

        The inbox then refers to the server no more, nor to the scope. A server's ``receive`` refers to the
        scope, and the scope to the inbox: such a cycle per request would be left to the garbage collector.
        """
        self._receive, self._scope = _NOTHING_MORE[self._scope["type"]]
        if self.withholds:
            self.withholds = False
            if self._withheld:
                self._tell()
        if self._pending:
            if self._whole:
                self.end_stream()  # What still listens hears a disconnect.
            self._pending.cancel()

    async def _until_more(
        self, patience: Patience | None = None, over: asyncio.Future[None] | None = None
    ) -> None:
        """Wait until a message has arrived, or until it is over.

        Where the application reads at this moment, it gets the message; otherwise it is read ahead.
        """
        arrival: asyncio.Future[None]
        if self._reading:
            self._direct = self._direct or asyncio.get_running_loop().create_future()
            arrival = self._direct
        else:
            self._pending = self._pending or asyncio.ensure_future(self._read_ahead())
            arrival = self._pending
        await self._first_of(patience, *((arrival, over) if over else (arrival,)))
        if arrival.done() and not (over and arrival.cancelled()):
            arrival.result()

    async def _first_of(self, patience: Patience | None, *futures: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        began, had = loop.time(), len(self._ahead)
        left = patience.left if patience else None
        done, _ = await asyncio.wait(futures, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if patience:
            size = len(self._ahead[-1].get("body", b"")) if len(self._ahead) > had else 0
            patience.note(loop.time() - began, size, in_time=bool(done))

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
        if message["type"] == "http.request":
            self._arrived = not message.get("more_body", False)


async def _nothing_more(kind: str) -> Message:
    return {"type": f"{kind}.disconnect"}


_NOTHING_MORE: Final[Mapping[str, tuple[Receive, Scope]]] = {
    kind: (partial(_nothing_more, kind), {"type": kind}) for kind in ("http", "websocket")
}
"""What an inbox refers to after a response of each kind."""


def _size(message: Message) -> int:
    payload = message.get("body") or message.get("bytes") or message.get("text") or b""
    return MESSAGE_SIZE + len(payload)


_AHEAD_OF_RESPONSES: Final = frozenset(
    {"http.response.push", "http.response.early_hint", "http.response.debug"}
)
"""Messages of extensions that promise nothing: the response is still to come."""


class Outbox(Output):
    """``send`` for the application. What is held back stays here until ``finish`` or ``discard``."""

    _complete = False
    _has_length = False
    _timer: asyncio.Handle | None = None
    _letting_go: asyncio.Task[None] | None = None
    keeping: asyncio.Task[None] | None = None
    """Keeps the answer of a request that is executed once."""
    background: Callable[[], object] | None = None
    """Returns whether background tasks follow the response, for which it must not wait."""
    is_streaming = False
    """Whether a part of the response has been sent, and more follows."""
    on_stream: Callable[[], None] | None = None
    """Called at each part after which more is to come."""
    closed = False
    """Whether a websocket has been closed, or rejected with a response."""

    def __init__(
        self,
        send: Send,
        inbox: Inbox,
        loop: asyncio.AbstractEventLoop,
        hold_back: float | None,
    ) -> None:
        """``hold_back`` limits the seconds for which a response waits, complete or not."""
        self.loop = loop
        self._hold_back = hold_back
        self._send = send
        self._inbox = inbox
        self._held: list[Message] = []

    def send(self, message: Message) -> Awaitable[None]:
        """Send or keep a message of the application. Raises ``LeaseLost``."""
        kind = message["type"]
        if kind == "http.response.start":
            if self.leases is not None:
                return self._begin(message)
            # Most requests lock nothing, and their messages go straight to the server.
            self.promises, self.sent = message["status"] < 500, True
            return self._send(message)
        if kind in _AHEAD_OF_RESPONSES:
            return self._send(message)
        return self._pass_on(message) if self.leases is None else self._go_on(message)

    async def _begin(self, start: Message) -> None:
        """Keep the beginning of a response, unless it is a stream of events."""
        headers = start.get("headers", ())
        fields: dict[bytes, bytes] = {}
        for name, value in headers:
            fields[name.lower()] = value
        content_type = fields.get(b"content-type", b"").decode("latin-1")
        must_go = self.begin(start["status"], content_type) or self.is_open or self.sent
        if self.waited is not None:
            timing = b"lock;dur=%.1f" % (1000 * self.waited)
            start = {**start, "headers": [*headers, (b"server-timing", timing)]}
        if must_go:
            await self._go_on(start)
            return
        self._held.append(start)
        self._complete = False
        self._has_length = b"content-length" in fields
        # A response that says how long it is, is most often sent at once and complete.
        if not self._has_length or self._hold_back is not None:
            self._timer = self.loop.call_soon(self._expect_the_rest)

    async def _go_on(self, message: Message) -> None:
        """Keep a message until the work is done, or send it, with all before it."""
        self.check()
        if self.is_open or self.sent:
            if self._letting_go:
                await asyncio.wait({self._letting_go})
            is_body = message["type"] == "http.response.body"
            if self.at_end and is_body and not message.get("more_body", False):
                await self.keep_answer()
                self.check()
            await self._pass_on(message)
            if is_body and not self.is_streaming:
                self._inbox.end_stream()  # Also of a stream without any part.
            return
        self._held.append(message)
        is_start = message["type"] == "http.response.start"  # Of a stream of events.
        self._complete = not (is_start or message.get("more_body", False))
        if self._complete:
            if len(self._held) > 2 or not self._has_length:
                self._inbox.end_stream()
            if self._hold_back is None and self._timer:
                self._timer.cancel()
            must_go = bool(self.background and self.background())
        else:
            self._size += len(message.get("body", b""))
            must_go = self.streams()
            if self._timer is None and not must_go:
                self._expect_the_rest()
        if must_go:
            self._begin_to_let_go()
        if self._letting_go:
            await asyncio.shield(self._letting_go)

    async def keep_answer(self) -> None:
        """Keep the answer, whatever cancels the request meanwhile."""
        self.keeping = self.keeping or asyncio.ensure_future(super().keep_answer())
        await asyncio.shield(self.keeping)

    async def finish(self) -> None:
        """Send what was held back: the application has ended."""
        self.is_open = True
        if self._timer:
            self._timer.cancel()
        if self._letting_go:
            await asyncio.shield(self._letting_go)
        if self._held:
            held, self._held, self.sent = self._held, [], True
            # The application has ended: no disconnect and no lost lease concerns it any more.
            await _send_all(held, self._send)

    def discard(self) -> None:
        """Drop what was held back: another response takes its place."""
        self._stop_holding()
        self._held = []

    async def close(self) -> None:
        """Drop what was held back, and wait for what is being sent."""
        self.discard()
        if self._letting_go:
            await asyncio.wait({self._letting_go})

    def end(self) -> None:
        """Send nothing from now on, and refer to the server no more, as ``Inbox.close``."""
        self._send = _nowhere

    async def abort(self) -> None:
        """Send nothing more: the server has cancelled the request."""
        if self._letting_go:
            self._letting_go.cancel()
        await self.close()

    def _expect_the_rest(self) -> None:
        """Limit the wait. Most responses are complete before this is called, and need no timer."""
        after = bodies.STREAMS_AFTER if self._hold_back is None else self._hold_back
        self._timer = self.loop.call_later(after, self._let_go_in_time)

    def _let_go_in_time(self) -> None:
        if self._hold_back is not None or not self._complete:
            self._begin_to_let_go()

    def _begin_to_let_go(self) -> None:
        self._stop_holding()
        if self._held:
            self.sent = True
            held, self._held = self._held, []
            self._letting_go = asyncio.ensure_future(self._let_go(held))

    async def _let_go(self, held: list[Message]) -> None:
        if self._complete and self.at_end:
            await self.keep_answer()
            try:
                self.check()
            except LeaseLost:  # The response to the loss takes its place.
                self.sent, self._held = False, held
                return
        await _send_all(held, self._pass_on)

    def _stop_holding(self) -> None:
        self.is_open = True
        if self._timer:
            self._timer.cancel()

    def _pass_on(self, message: Message) -> Awaitable[None]:
        self.sent = True
        if message["type"] == "http.response.body":
            # A stream may be endless, and ends when nobody wants it any more. What follows its last
            # part, a commit say, must not be ended so.
            if message.get("more_body", False):
                self.is_streaming = True
                self._refuse_if_cut_off()
                self._inbox.begin_stream()
                if self.on_stream:
                    self.on_stream()
            elif self.is_streaming:
                self.is_streaming = False
                return self._end(message)
        elif message["type"] == "websocket.send":
            self._refuse_if_cut_off()
        elif message["type"] in ("websocket.close", "websocket.http.response.start"):
            self.closed = True
        return self._send(message)

    def _refuse_if_cut_off(self) -> None:
        if self._inbox.cut_off:  # The error that servers raise when the client has gone.
            raise ConnectionAbortedError("the server has cancelled the request")

    async def _end(self, message: Message) -> None:
        """Send the last part. Only then it is over: what listens may cancel what still sends."""
        try:
            await self._send(message)
        finally:
            self._inbox.end_stream()


async def _send_all(messages: list[Message], send: Send) -> None:
    try:
        for message in messages:
            await send(message)
    except OSError:
        logger.debug("a client left before it had its response", exc_info=True)


async def _nowhere(message: Message) -> None:
    """Sends nothing: the exchange is over."""
