"""Connections of the blocking API: one thread has one for the length of a round trip."""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any, Final

import hiredis
import redis
from redis import exceptions

from ..._core.ports import sent
from ..._platform.forks import close_in_children
from ..._platform.greenlets import patched_by
from ..transport.sending import READABLE, in_this_thread, new_poll
from ..transport.turns import Empty, taken_out, turns
from ..transport.unfit import Unfit
from .aio import Loan
from .asking import FAILURES, Connect, connecting
from .internals import socket_of
from .servers import explained
from .settings import Address
from .wire import INCOMPLETE, Link, Links

if TYPE_CHECKING:
    from .receiver import Receiver

_NOW: Final = (False,)
"""The argument of ``SimpleQueue.get`` with which it does not wait."""

_CHUNK: Final = 16384

FRESH: Final = 0.05
"""Seconds after its last reply for which a connection counts as open."""

SPARE: Final = 2.0
"""Seconds for which an unneeded connection stays open, if it is not the only one."""

LOAN: Final = 0.2
"""Seconds for which a keeper that can open no connection waits for one of the callers."""


class BlockingLink(Link):
    """One connection, from its handshake on, without the layers that redis-py has above its socket.

    With ``two_phase``, requests suspend between sending and receiving: see ``ports.sent``. A caller that
    need not wait any longer closes its request, and the reply is dropped when it comes.
    """

    two_phase = False

    def __init__(
        self, address: Address, connection: redis.Connection, *, timeout: float | None = None
    ) -> None:
        self._connection = connection
        self._socket = socket_of(connection)
        if timeout is not None:
            self._socket.settimeout(timeout)
        super().__init__(address, self._socket.gettimeout() or 0.0)
        self.used_at = time.monotonic()
        self.alive = True
        """Whether nothing has gone wrong on it yet, and no reply is on its way that a caller waits for."""
        self.home: BlockingLinks | None = None
        """Its pool, also while it is lent to another."""
        time_out_in_kernel(self._socket)
        self._polls = self._socket.gettimeout() is None
        self._unwanted = 0
        """Replies on their way that no caller waits for."""
        self._send = self._socket.sendall
        self._receive_into = self._socket.recv_into
        self._buffer = bytearray(_CHUNK)
        self._poll = new_poll()
        self._poll.register(self._socket, READABLE)
        self.fileno = self._socket.fileno
        close_in_children(self._socket)

    async def ask(self, command: bytes, count: int | None = None) -> Any:
        """Send a command, and return its reply; with a count, the list of so many replies."""
        unwanted = self._unwanted
        missing = unwanted + (count or 1)
        replies: list[Any] = []
        self.alive = False  # A reply that is left here would be taken for another's.
        try:
            until = time.monotonic() + self.timeout
            self._send(command)
            while len(replies) < missing:
                if self.two_phase:
                    await sent(self._socket.fileno(), until)
                self._receive(until)
                while (reply := self._next_reply()) is not INCOMPLETE:
                    replies.append(reply)
        except GeneratorExit:
            self._unwanted = missing - len(replies)
            self.alive = True
            raise
        except (OSError, hiredis.ProtocolError) as error:
            raise self._failed(error) from error
        except BaseException:
            self.discard()
            raise
        self._unwanted = 0
        self.alive = True
        return replies[unwanted:] if count else replies[-1]

    async def exchange(self, commands: Sequence[bytes]) -> list[Any]:
        replies: list[Any] = await self.ask(b"".join(commands), len(commands))
        return replies

    def send(self, command: bytes) -> None:
        """Send a command whose answer comes later, or never: see ``heard``."""
        try:
            self._send(command)
        except OSError as error:
            raise self._failed(error) from error

    def heard(self) -> list[Any]:
        """Return pushed messages, or none after the timeout of the connection.

        It reads without asking first whether there is something to read: beside a thread that
        computes, each system call may cost a turn at the interpreter, which is 5 ms.
        """
        heard: list[Any] = []
        try:
            until = time.monotonic() + self.timeout
            while not heard:
                self._receive(until)
                while (reply := self._next_reply()) is not INCOMPLETE:
                    heard.append(reply)
        except (BlockingIOError, TimeoutError):
            return heard
        except (OSError, hiredis.ProtocolError) as error:
            raise self._failed(error) from error
        return heard

    def discard(self) -> None:
        self.alive = False
        self._connection.disconnect()

    close = discard

    def usable(self) -> bool:
        """Whether the server has kept the connection open, so that a request can arrive.

        A connection that has just received a reply is not checked: that would cost each request a system call.
        """
        if self._unwanted and self.alive and self._poll.poll(0):
            try:
                self._receive(time.monotonic() + self.timeout)
                while self._next_reply() is not INCOMPLETE:
                    self._unwanted -= 1
            except (OSError, hiredis.ProtocolError):
                self.discard()
        if time.monotonic() - self.used_at < FRESH:
            return self.alive
        if self.alive and self._poll.poll(0):  # The end: we have not asked for anything.
            self.discard()
        return self.alive

    def _failed(self, error: Exception) -> Exception:
        """End the connection, and return redis-py's error for what happened to it."""
        self.discard()
        if isinstance(error, TimeoutError | BlockingIOError):
            return self.no_answer()
        return exceptions.ConnectionError(f"the connection was lost: {error}")

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
        self._feed(self._buffer, 0, size)  # type: ignore[arg-type]  # It takes any buffer.


def connected(
    address: Address, connection: redis.Connection, *, timeout: float | None = None
) -> BlockingLink:
    """Let redis-py connect and authenticate, and take the connection over."""
    try:
        with connecting():
            connection.connect()
    except BaseException:
        connection.disconnect()
        raise
    return BlockingLink(address, connection, timeout=timeout)


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
        self._wanted: dict[Address, SimpleQueue[BlockingLink]] = {}
        """Where the next connection goes that comes back, ahead of all callers that wait for one."""
        self._connects_within = connects_within
        self._two_phase = two_phase
        self._receiver = receiver
        self._patience = patience
        self._size = room
        self.free = turns(room)
        self._idle: dict[Address, list[BlockingLink]] = {}
        self._answered_at = float("-inf")
        """When a connection last came back with an answer."""
        self._closed = False

    @property
    def process(self) -> str:
        return self._receiver.bell.channel

    def listen(self) -> None:
        self._receiver.listen()

    async def aside(self, work: Callable[[], None]) -> None:
        work()

    async def together(self, works: Sequence[Coroutine[Any, Any, None]]) -> None:
        await in_this_thread(works, lambda: False)

    def at_once(self, address: Address, permits: list[None]) -> BlockingLink | None:
        try:
            permits += map(self.free.get, _NOW)
            link = self._idle[address].pop()
        except (Empty, LookupError):
            return None
        return link if link.usable() else None

    async def take(self, address: Address, permits: list[None], *, beside: bool = False) -> Lent:
        beside = beside or self._two_phase
        if beside:
            if not permits and (link := self.at_once(address, permits)):
                link.two_phase = True
                return link
            await sent(None, time.monotonic() + self._connects_within)
        if not permits:
            try:
                permits += map(self.free.get, (True,), (self._patience,))
            except Empty:
                # If the server answers, a connection comes back every few milliseconds. If none has
                # come back for long, the others wait for it, and more connections would do the same.
                if time.monotonic() - self._answered_at < self._patience / 2:
                    text = f"all {self._size} connections are in use: raise max_connections"
                else:
                    late = exceptions.TimeoutError(f"no answer for {self._patience:g} s")
                    text = explained(late)
                raise Unfit(text) from None
        lent: Lent | None
        try:
            lent = self._idle_link(address) or await self._new_link(address)
        except FAILURES:
            lent = self._borrow(address) if self._borrow and not self._closed else None
            if lent is None:
                raise
        lent.two_phase = beside
        return lent

    def give_back(self, link: Link) -> None:
        if isinstance(link, Loan):  # It stays with its loop.
            return
        assert isinstance(link, BlockingLink)
        if link.home and link.home is not self:
            link.home.give_back(link)
            return
        link.two_phase = self._two_phase
        if link.alive:
            link.used_at = self._answered_at = time.monotonic()
            if self._wanted and (wanted := self._wanted.pop(link.address, None)):
                wanted.put(link)
            else:
                self._idle.setdefault(link.address, []).append(link)
        else:  # The others would wait for the same server.
            for each in (link, *self._idle.pop(link.address, ())):
                each.discard()
        if self._closed:
            self._close_idle()

    def lend(self, address: Address) -> BlockingLink | None:
        if self._borrow:  # This is the pool of the keeper itself.
            return None
        if link := self._idle_link(address):
            return link
        wanted = self._wanted[address] = SimpleQueue()
        with suppress(Empty):
            return wanted.get(timeout=LOAN)
        # If a caller has taken the queue, it is about to put its connection there.
        if self._wanted.pop(address, None) is None:
            with suppress(Empty):
                return wanted.get(timeout=LOAN)
        return None

    def tidy(self) -> None:
        for idle in list(self._idle.values()):
            try:
                # The last is taken first, so the first has lain idle for longest.
                while len(idle) > 1 and time.monotonic() - idle[0].used_at > SPARE:
                    idle.pop(0).discard()
            except IndexError:
                pass  # All have just been taken.

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

    async def _new_link(self, address: Address) -> BlockingLink:
        if self._closed:
            raise Unfit("it was closed")
        link = connected(address, self._connect(address))
        link.home, link.two_phase = self, self._two_phase
        try:
            await self.introduce(link)
        except BaseException:
            link.discard()
            raise
        return link


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
