"""Connections of asyncio: one to each server for each event loop, which all its tasks share.

What is asked in one turn of the loop goes out in one write, and notifications come in on the same
connection (RESP3). So a loop needs no pool, and no task waits for a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any, Final, cast

import redis.asyncio
from redis import exceptions

from ..._core.ports import CheckAgain
from ..._platform.forks import close_in_children
from ..._platform.logs import logger
from ..transport.failures import Unfit
from ..transport.loops import BeforeLoopEnds, ByLoop
from .asking import connecting, in_background
from .calls import packed
from .internals import take_writer
from .link import NOT_NOTIFIED, Introduce, Link, Links, Subscription
from .servers import explained
from .settings import Address

BATCH: Final = 8
"""Commands that are sent before the turn of the loop is over, so that the server need not wait."""

WINDOW: Final = 64
"""Commands that the server has been sent and has not answered, at most. The rest waits here.

A server sends no reply before it has executed all commands that it has read from the connection. A
thousand callers at once would make it look silent, and the keeper, which has a connection of its own,
would wait for all of them.
"""


class AsyncioLink(Link[tuple[asyncio.Future[Any], float]], asyncio.Protocol):
    """One connection, from its handshake on. A request in flight is the future of its reply, and its deadline."""

    def __init__(
        self,
        address: Address,
        writer: asyncio.StreamWriter,
        *,
        timeout: float,
        on_end: Callable[[AsyncioLink], None],
        subscription: Subscription | None = None,
    ) -> None:
        super().__init__(address, timeout, subscription)
        self.loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._replied_at = self.loop.time()
        self._outgoing: deque[tuple[bytes, asyncio.Future[Any]]] = deque()
        """Commands that have not been sent, and the futures of their replies."""
        self._flushes = False
        """Whether the end of this turn sends what is put off."""
        self._crowded = False
        """Whether the last replies came for several callers, which will ask again in the same turn."""
        self._watch: asyncio.TimerHandle | None = None
        self._writer = writer  # It would close its transport if it were collected.
        self._transport = cast("asyncio.Transport", writer.transport)
        close_in_children(self)
        self._transport.set_protocol(self)

    def ask(self, command: bytes) -> asyncio.Future[Any]:
        """Send a command, and return the future of its reply.

        A caller that is alone does not wait for the end of the turn. Where several ask in one turn,
        one write for all of them is faster than one for each.
        """
        if self.failure:
            raise self.failure
        loop = self.loop
        reply: asyncio.Future[Any] = loop.create_future()
        if self._in_flight or self._outgoing or self._crowded:
            self._outgoing.append((command, reply))
            if len(self._outgoing) >= BATCH:
                self._flush()
            elif not self._flushes:
                self._flushes = True
                loop.call_soon(self._flush)
        else:
            self._transport.write(command)
            due = loop.time() + self.timeout
            self._in_flight.append((reply, due))
            if self._watch is None:
                self._watch = loop.call_at(due, self._look)
        return reply

    async def exchange(self, commands: Sequence[bytes]) -> list[Any]:
        replies = [self.ask(command) for command in commands]
        return [await reply for reply in replies]

    async def exchange_first(self, commands: Sequence[bytes]) -> list[Any]:
        """Send commands ahead of those that have not been sent, and return their replies."""
        if self.failure:
            raise self.failure
        replies = [self.loop.create_future() for _ in commands]
        self._outgoing.extendleft(reversed([*zip(commands, replies, strict=True)]))
        self._flush()
        return [await reply for reply in replies]

    def fileno(self) -> int:
        """Return the number of its socket, which the loop closes at any time once it has failed."""
        if self.failure or self.loop.is_closed():
            return -1
        number: int = self._transport.get_extra_info("socket").fileno()
        return number

    def data_received(self, data: bytes) -> None:
        answered = self._arrived(data)
        for (waiter, _), reply in answered:
            if not waiter.done():
                waiter.set_result(reply)
        self._crowded = len(answered) > 1
        if answered:
            self._replied_at = self.loop.time()
            if self._outgoing:
                self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exceptions.ConnectionError(f"the connection was lost: {exc or 'closed'}"))

    def _flush(self) -> None:
        self._flushes = False
        commands: list[bytes] = []
        due = self.loop.time() + self.timeout
        while self._outgoing and len(self._in_flight) < WINDOW:
            command, reply = self._outgoing.popleft()
            if not reply.done():  # Else its caller was cancelled.
                commands.append(command)
                self._in_flight.append((reply, due))
        if commands:
            if self._watch is None:
                self._watch = self.loop.call_at(due, self._look)
            self._transport.write(b"".join(commands))

    def _look(self) -> None:
        """Check the oldest request: one timer serves all that wait here.

        The server answers requests in their order, so it has ``timeout`` seconds for each from when it
        has answered the one before. A thousand callers at once are no reason to count it as silent.
        """
        self._watch = None
        if not self._in_flight:
            return
        silent_at = max(self._in_flight[0][1], self._replied_at + self.timeout)
        if self.loop.time() >= silent_at:
            self._end(self.no_answer())
        else:
            self._watch = self.loop.call_at(silent_at, self._look)

    def _end(self, failure: Exception) -> None:
        if self.failure:
            return
        self.failure = failure
        if self._watch:
            self._watch.cancel()
        self._transport.abort()
        unanswered = [waiter for waiter, _ in self._in_flight]
        unanswered += [waiter for _, waiter in self._outgoing]
        self._in_flight.clear()
        self._outgoing.clear()
        for waiter in unanswered:
            if not waiter.done():
                waiter.set_exception(failure)
                waiter.exception()  # Looked at, lest the loop logs it where the caller was cancelled.
        self._on_end(self)


class Loan(Link[None]):
    """A link of an event loop, as the thread of the keeper uses it."""

    two_phase = False

    def __init__(self, link: AsyncioLink) -> None:
        super().__init__(link.address, link.timeout)
        self.incarnation = link.incarnation
        self._link = link

    async def ask(self, command: bytes) -> Any:
        (reply,) = await self.exchange([command])
        return reply

    async def exchange(self, commands: Sequence[bytes]) -> list[Any]:
        asking = self._link.exchange_first(commands)
        try:
            replies = asyncio.run_coroutine_threadsafe(asking, self._link.loop)
        except RuntimeError as error:
            asking.close()
            raise exceptions.ConnectionError("the event loop has been closed") from error
        try:
            return replies.result(self.timeout)
        except TimeoutError:
            replies.cancel()
            raise self.no_answer() from None

    def discard(self) -> None:
        """Do nothing: its loop sees to it."""


class LoopLinks:
    """The links of one event loop."""

    def __init__(
        self,
        subscription: Subscription,
        connect: Callable[[Address], redis.asyncio.Connection],
        *,
        timeout: float,
    ) -> None:
        self.subscription = subscription
        self.loop = asyncio.get_running_loop()
        self._connect = connect
        self._timeout = timeout
        self._aside: asyncio.Future[BaseException | None] | None = None
        self._making: dict[Address, asyncio.Task[AsyncioLink]] = {}
        self.up: dict[Address, AsyncioLink] = {}
        """The links that are ready for use."""
        self._listener: AsyncioLink | None = None
        self._end = BeforeLoopEnds(self._discard)

    async def take(self, address: Address, introduce: Introduce) -> AsyncioLink:
        """Return the link to a server; the first caller makes it, and the others wait for that."""
        if link := self.up.get(address):
            return link
        making = self._making.get(address)
        if making is None or making.done():
            making = self._making[address] = self.loop.create_task(
                self._new(address, introduce), context=Context()
            )
            # Looked at, lest the loop logs the error where all callers were cancelled.
            making.add_done_callback(lambda made: made.cancelled() or made.exception())
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if making.cancelled() and task and not task.cancelling():  # It was closed meanwhile.
                raise Unfit("it was closed") from None
            raise

    def listen(self) -> None:
        """Subscribe on an open link, unless that has been done."""
        if self._listener and not self._listener.failure:
            return
        for link in list(self.up.values()):
            if self.subscription.serves(link.address):
                self._listener = link
                link.ask(packed("SUBSCRIBE", self.subscription.channel)).add_done_callback(
                    _warn_if_refused
                )
                return

    def move(self) -> None:
        """Listen elsewhere, if the server where it listens is no longer one of ours."""
        link = self._listener
        if link and not self.subscription.serves(link.address):
            link.discard()

    async def aside(self, work: Callable[[], None]) -> None:
        """Run in a thread of our own what all tasks wait for together."""
        if self._aside is None or self._aside.done():
            outcome: asyncio.Future[BaseException | None] = self.loop.create_future()

            def run() -> None:
                failure: BaseException | None = None
                try:
                    work()
                except BaseException as error:  # noqa: BLE001 - raised in the waiters
                    failure = error
                with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile.
                    self.loop.call_soon_threadsafe(outcome.set_result, failure)

            if not in_background(run, "aside"):
                raise Unfit("no thread could be started to ask where it is")
            self._aside = outcome  # Only now: nothing would end one that was not begun.
        if failure := await asyncio.shield(self._aside):
            raise failure

    def close(self) -> None:
        """End all connections. It must run in the loop."""
        self._end.now()
        self._discard()  # Those that were made after the loop had closed its generators.

    def _discard(self) -> None:
        for link in list(self.up.values()):
            link.discard()
        for making in list(self._making.values()):
            making.cancel()

    async def _new(self, address: Address, introduce: Introduce) -> AsyncioLink:
        try:
            connection = self._connect(address)
            try:
                with connecting():
                    await connection.connect()
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            link = AsyncioLink(
                address,
                take_writer(connection),  # It has connected and authenticated.
                timeout=self._timeout,
                on_end=self._ended,
                subscription=self.subscription,
            )
            await introduce(link)
        finally:
            self._making.pop(address, None)
        if not link.failure:
            self.up[address] = link
        return link

    def _ended(self, link: AsyncioLink) -> None:
        if self.up.get(link.address) is link:
            del self.up[link.address]
        if self._listener is link:
            self._listener = None
            # The waiters ask again, which makes us listen on another.
            self.subscription.switchboard.notify_all(CheckAgain())


class AsyncioLinks(Links):
    """The links of whichever event loop runs. They are shared, so callers need no permits."""

    def __init__(self, new: Callable[[], LoopLinks]) -> None:
        self._loops = ByLoop(new)
        self._closed = False

    @property
    def process(self) -> str:
        return self._loops.here().subscription.channel

    def listen(self) -> None:
        self._loops.here().listen()

    def aside(self, work: Callable[[], None]) -> Awaitable[None]:
        return self._loops.here().aside(work)

    async def together(self, works: Sequence[Coroutine[Any, Any, None]]) -> None:
        await asyncio.gather(*works)

    def move(self) -> None:
        for links in self._loops.all():
            with contextlib.suppress(RuntimeError):  # The loop has been closed.
                links.loop.call_soon_threadsafe(links.move)

    def lend(self, address: Address) -> Loan | None:
        for links in self._loops.all():
            if link := links.up.get(address):
                return Loan(link)
        return None

    async def take(
        self, address: Address, permits: list[None], introduce: Introduce, *, beside: bool = False
    ) -> AsyncioLink:
        latest = self._loops.latest()
        if latest and latest.loop is asyncio.get_running_loop() and address in latest.up:
            return latest.up[address]
        if self._closed:  # A request under way fails then, and would be repeated on a new one.
            raise Unfit("it was closed")
        return await self._loops.here().take(address, introduce)

    def close(self) -> None:
        self._closed = True
        self._loops.close()


def _warn_if_refused(subscribed: asyncio.Future[Any]) -> None:
    if not subscribed.exception() and isinstance(subscribed.result(), Exception):
        logger.warning(NOT_NOTIFIED, explained(subscribed.result()))
