"""Connections of the blocking API: one thread has one for the length of a round trip."""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from queue import Empty, SimpleQueue
from threading import current_thread, main_thread
from typing import Any, Final

import redis
from redis import exceptions

from ..._core.ports import sent
from ..._platform.forks import close_in_children
from ..._platform.logs import logger
from ..._platform.threads import patched_by
from ..transport.failures import Silence, Unfit
from ..transport.listener import Listener
from ..transport.pool import IN_USE, next_that_comes_back, turns
from ..transport.sending import READABLE, in_this_thread, new_poll, taken_out
from .aio import Loan
from .asking import FAILURES, Connect, connecting
from .calls import packed
from .internals import socket_of
from .link import NOT_NOTIFIED, Introduce, Link, Links, Subscription
from .servers import explained
from .settings import Address

_NOW: Final = (False,)
"""The argument of ``SimpleQueue.get`` with which it does not wait."""

_CHUNK: Final = 16384

FRESH: Final = 0.05
"""Seconds after its last reply for which a connection counts as open."""

SPARE: Final = 2.0
"""Seconds after which a connection that no call has needed is closed when another comes back."""

LISTENED_IN: Final = 5.0
"""Seconds of silence after which a subscription is checked."""

REFUSED_PAUSE: Final = 60.0
"""Seconds until the right to subscribe is asked for again."""


class BlockingLink(Link[list[Any]]):
    """One connection, from its handshake on, without the layers that redis-py has above its socket.

    A request in flight is the list of its replies. With ``two_phase``, requests suspend between sending
    and receiving (see ``ports.sent``); a caller that need not wait any longer closes its request.
    """

    two_phase = False

    def __init__(
        self,
        address: Address,
        connection: redis.Connection,
        *,
        timeout: float | None = None,
        subscription: Subscription | None = None,
    ) -> None:
        self._connection = connection
        self._socket = socket_of(connection)
        if timeout is not None:
            self._socket.settimeout(timeout)
        super().__init__(address, self._socket.gettimeout() or 0.0, subscription)
        self.used_at = time.monotonic()
        self.alive = True
        """Whether nothing has gone wrong on it yet, and no caller is in the middle of a request."""
        time_out_in_kernel(self._socket)
        self._polls = self._socket.gettimeout() is None
        self._send = self._socket.sendall
        self._receive_into = self._socket.recv_into
        self._buffer = bytearray(_CHUNK)
        self._poll = new_poll()
        self._poll.register(self._socket, READABLE)
        self.fileno = self._socket.fileno
        close_in_children(self._socket)

    async def ask(self, command: bytes, count: int | None = None) -> Any:
        """Send a command, and return its reply; with a count, the list of so many replies."""
        replies: list[Any] = []
        missing = count or 1
        self.alive = False  # It may have been sent in part if a signal handler raises an exception.
        try:
            self._in_flight += [replies] * missing
            until = time.monotonic() + self.timeout
            self._send(command)
            while len(replies) < missing:
                if self.two_phase:
                    await sent(self._socket.fileno(), until)
                self._receive(until)
        except GeneratorExit:
            self.alive = True
            raise
        except OSError as error:
            raise self._failed(error) from error
        except BaseException:
            self.discard()
            raise
        self.alive = True
        return replies if count else replies[0]

    async def exchange(self, commands: Sequence[bytes]) -> list[Any]:
        replies: list[Any] = await self.ask(b"".join(commands), len(commands))
        return replies

    def send(self, command: bytes) -> list[Any]:
        """Send a command, and return the list where ``hear`` puts its reply."""
        replies: list[Any] = []
        self._in_flight.append(replies)
        try:
            self._send(command)
        except OSError as error:
            raise self._failed(error) from error
        return replies

    def hear(self) -> bool:
        """Receive notifications and replies; return whether any have come within the timeout.

        It reads without asking first whether there is something to read: beside a thread that
        computes, each system call may cost a turn at the interpreter, which is 5 ms.
        """
        try:
            self._receive(time.monotonic() + self.timeout)
        except (BlockingIOError, TimeoutError):
            return False
        except OSError as error:
            raise self._failed(error) from error
        return True

    def usable(self) -> bool:
        """Whether the server has kept the connection open, so that a request can arrive.

        A connection that has just received a reply is not checked: that would cost each request a system call.
        """
        if self._in_flight and self.alive and self._poll.poll(0):
            try:
                self._receive(time.monotonic() + self.timeout)
            except (OSError, exceptions.RedisError):
                self.discard()
        if time.monotonic() - self.used_at < FRESH:
            return self.alive
        if self.alive and self._poll.poll(0):  # The end: we have not asked for anything.
            self.discard()
        return self.alive

    close = Link.discard

    def _failed(self, error: OSError) -> Exception:
        """End the connection, and return redis-py's error for what happened to it."""
        if isinstance(error, TimeoutError | BlockingIOError):
            self._end(self.no_answer())
        else:
            self._end(exceptions.ConnectionError(f"the connection was lost: {error}"))
        assert self.failure
        return self.failure

    def _end(self, failure: Exception) -> None:
        self.alive = False
        self.failure = self.failure or failure
        self._connection.disconnect()

    def _receive(self, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        # Each signal makes a timeout of the kernel begin anew. Signals come to the main thread, which
        # therefore asks ``poll`` first. That costs a system call, and Python counts its time correctly.
        # With two phases, the caller has polled.
        polls = self._polls and not self.two_phase and current_thread() is main_thread()
        if polls and not self._poll.poll(1000 * left):
            raise TimeoutError
        size = self._receive_into(self._buffer)
        if not size:
            raise ConnectionResetError("closed")
        for replies, reply in self._arrived(self._buffer, 0, size):
            replies.append(reply)
        if self.failure:
            raise self.failure


def connected(address: Address, connection: redis.Connection, **rest: Any) -> BlockingLink:
    """Let redis-py connect and authenticate, and take the connection over."""
    try:
        with connecting():
            connection.connect()
    except BaseException:
        connection.disconnect()
        raise
    return BlockingLink(address, connection, **rest)


Lent = BlockingLink | Loan


class BlockingLinks(Links):
    """A pool: as many connections as threads talk to a server at the same time, at most ``room``.

    Requests that are one of several suspend where they would block (see ``ports.sent``), with ``two_phase``
    all do. ``borrow`` returns a connection of another pool, where this one can open none.
    """

    def __init__(
        self,
        connect: Connect,
        receiver: Receiver,
        *,
        room: int,
        patience: float,
        connects_within: float = 0.0,
        two_phase: bool = False,
        borrow: Callable[[Address], Lent | None] | None = None,
    ) -> None:
        self._connect = connect
        self._borrow = borrow
        self._wanted: defaultdict[Address, list[SimpleQueue[BlockingLink]]] = defaultdict(list)
        """Where the next connection goes that comes back, ahead of all callers that wait for one."""
        self._connects_within = connects_within
        self._two_phase = two_phase
        self._receiver = receiver
        self._patience = patience
        self._size = room
        self.free = turns(room)
        self._idle: dict[Address, list[BlockingLink]] = {}
        late = exceptions.TimeoutError(f"no answer for {patience:g} s")
        self._silence = Silence(lambda _error: explained(late), timeout=patience / 2)
        self._closed = False

    @property
    def process(self) -> str:
        return self._receiver.subscription.channel

    def listen(self) -> None:
        self._receiver.listen()

    async def aside(self, work: Callable[[], None]) -> None:
        work()

    async def together(self, works: Sequence[Coroutine[Any, Any, None]]) -> None:
        await in_this_thread(works, lambda: False)

    async def take(
        self, address: Address, permits: list[None], introduce: Introduce, *, beside: bool = False
    ) -> Lent:
        beside = beside or self._two_phase
        link: Lent | None = None
        try:
            if not permits:
                permits += map(self.free.get, _NOW)
            idle = self._idle[address].pop()
            link = idle if idle.usable() else None
        except (Empty, LookupError):
            pass
        if link is None:
            if beside:
                await sent(None, time.monotonic() + self._connects_within)
            link = await self._idle_or_new(address, permits, introduce)
        link.two_phase = beside
        return link

    async def _idle_or_new(
        self, address: Address, permits: list[None], introduce: Introduce
    ) -> Lent:
        if not permits:
            try:
                permits += map(self.free.get, (True,), (self._patience,))
            except Empty:
                # If the server answers, a connection comes back every few milliseconds.
                raise self._silence.turn_in_vain(IN_USE.format(self._size)) from None
        if link := self._idle_link(address):
            return link
        try:
            if self._closed:
                raise Unfit("it was closed")
            link = connected(address, self._connect(address))
            link.home = self
            await introduce(link)
        except FAILURES:
            lent = self._borrow(address) if self._borrow and not self._closed else None
            if lent is None:
                raise
            return lent
        return link

    def give_back(self, link: BlockingLink) -> None:
        if link.alive:
            link.used_at = self._silence.answered_at = time.monotonic()
            wanted = self._wanted[link.address]
            if wanted and (queue := next(taken_out(wanted), None)):
                queue.put(link)
            else:
                idle = self._idle.setdefault(link.address, [])
                idle.append(link)
                # The last is taken first, so the first has been idle for longest: since a rush, perhaps.
                try:
                    if idle[0].used_at < link.used_at - SPARE:
                        idle.pop(0).discard()
                except IndexError:
                    pass  # Other threads have just taken all.
        else:  # The others would wait for the same server.
            for each in (link, *self._idle.pop(link.address, ())):
                each.discard()
        if self._closed:
            self._close_idle()

    def lend(self, address: Address) -> BlockingLink | None:
        if self._borrow:  # This is the pool of the keeper itself.
            return None
        return self._idle_link(address) or next_that_comes_back(self._wanted[address])

    def move(self) -> None:
        for address, idle in list(self._idle.items()):
            if not self._receiver.subscription.serves(address):
                for link in taken_out(idle):
                    link.discard()

    def close(self) -> None:
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        for links in list(self._idle.values()):
            for each in taken_out(links):
                each.discard()

    def _idle_link(self, address: Address) -> BlockingLink | None:
        for link in taken_out(self._idle.get(address, [])):
            if link.usable():
                return link
        return None


class Receiver:
    """The thread that receives the notifications of all waiters here, from when the first one waits."""

    def __init__(
        self, subscription: Subscription, connect: Callable[[Subscription], BlockingLink]
    ) -> None:
        self.subscription = subscription
        self._connect = connect
        self._told = False
        lost = (exceptions.RedisError,)
        self._listener = Listener(self._connected, self._hear, lost=lost)
        self.listen = self._listener.start
        self.close = self._listener.close

    def move(self) -> None:
        """Make the thread listen elsewhere, if its server is no longer one of ours."""
        link = self._listener.connection
        if link and not self.subscription.serves(link.address):
            self._listener.hang_up()

    def _connected(self) -> BlockingLink:
        try:
            return self._connect(self.subscription)
        except exceptions.ResponseError as error:  # It may know no RESP3, which only this needs.
            if not self._told:
                logger.warning(NOT_NOTIFIED, explained(error))
            self._told = True
            raise

    def _hear(self, link: BlockingLink) -> None:
        replies = link.send(packed("SUBSCRIBE", self.subscription.channel))
        while not self._listener.ended.is_set():
            if link.hear():
                for reply in replies:
                    if isinstance(reply, exceptions.NoPermissionError):
                        logger.warning(NOT_NOTIFIED, explained(reply))
                        link.discard()
                        self._listener.ended.wait(REFUSED_PAUSE)
                        return
                    if isinstance(reply, Exception):
                        raise reply
            elif replies:
                replies = link.send(packed("PING"))
            else:
                raise exceptions.TimeoutError("the subscription is silent")


def time_out_in_kernel(sock: socket.socket) -> None:
    """Let the kernel watch over a socket's timeout, where it can.

    A socket with a timeout of Python's own is polled before it is written to or read: a system call
    more for each, and one more turn at the interpreter. One that timed out in the kernel raises
    ``BlockingIOError``.
    """
    seconds = sock.gettimeout()
    # TLS and greenlets have timeouts of their own.
    plain = type(sock) is socket.socket and patched_by() is None
    if not plain or not seconds or not sys.platform.startswith("linux"):
        return
    whole = int(seconds)
    limit = struct.pack("@ll", whole, max(1, int((seconds - whole) * 1e6)))
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    except OSError:
        return
    sock.settimeout(None)
