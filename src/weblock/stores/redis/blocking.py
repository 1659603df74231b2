"""Connections of the blocking world: one thread has one for the length of a round trip."""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, Final

import hiredis
import redis
from redis import exceptions

from ..._core.ports import sent
from ..._platform.forks import close_in_children
from ..._platform.greenlets import patched_by
from ..transport.polling import READABLE, new_poll
from ..transport.turns import Empty, taken_out, turns
from ..transport.unfit import Unfit
from .aio import Loan
from .asking import Connect, connecting
from .failures import explained
from .internals import socket_of
from .servers import Server
from .settings import Address
from .wire import Errors, Introduce, Link

if TYPE_CHECKING:
    from .receiver import Receiver

_INCOMPLETE: Final = object()

_NOW: Final = (False,)
"""The argument of ``SimpleQueue.get`` with which it does not wait."""

_CHUNK: Final = 16384

FRESH: Final = 0.05
"""Seconds after its last reply for which a connection counts as open."""

SPARE: Final = 2.0
"""Seconds for which an unneeded connection stays open, if it is not the only one."""

LOAN: Final = 0.2
"""Seconds for which a keeper that can open no connection waits for one of the callers."""


class BlockingLink:
    """One connection, from its handshake on, without the layers that redis-py has above its socket."""

    server: Server
    incarnation: str

    def __init__(
        self,
        address: Address,
        connection: redis.Connection,
        *,
        timeout: float | None = None,
    ) -> None:
        self.address = address
        self.used_at = time.monotonic()
        self.alive = True
        """Whether nothing has gone wrong on it yet, and no reply is on its way."""
        self.home: BlockingLinks | None = None
        """The pool that has lent it."""
        self._connection = connection
        self._socket = socket_of(connection)
        if timeout is not None:
            self._socket.settimeout(timeout)
        self._timeout = self._socket.gettimeout() or 0.0
        time_out_in_kernel(self._socket)
        self._polls = self._socket.gettimeout() is None
        self._send = self._socket.sendall
        self._receive_into = self._socket.recv_into
        self._buffer = bytearray(_CHUNK)
        reader = hiredis.Reader(replyError=Errors.parse_error, notEnoughData=_INCOMPLETE)
        self._feed = reader.feed
        self._next_reply = reader.gets
        self._poll = new_poll()
        self._poll.register(self._socket, READABLE)
        self.fileno = self._socket.fileno
        close_in_children(self._socket)

    async def ask(self, command: bytes) -> Any:
        self.alive = False  # A reply that is left here would be taken for another's.
        try:
            until = time.monotonic() + self._timeout
            self._send(command)
            reply = _INCOMPLETE
            while reply is _INCOMPLETE:
                self._receive(until)
                reply = self._next_reply()
        except BaseException as error:
            self._fail(error)
            raise
        self.alive = True
        return reply

    async def exchange(self, commands: Sequence[bytes]) -> list[Any]:
        replies: list[Any] = []
        self.alive = False
        try:
            until = time.monotonic() + self._timeout
            self._send(b"".join(commands))
            while len(replies) < len(commands):
                if (reply := self._next_reply()) is not _INCOMPLETE:
                    replies.append(reply)
                    continue
                self._receive(until)
        except BaseException as error:
            self._fail(error)
            raise
        self.alive = True
        return replies

    def send(self, command: bytes) -> None:
        """Send a command whose answer comes later, or never: see ``heard``."""
        try:
            self._send(command)
        except OSError as error:
            self.discard()
            raise self._explained(error) from error

    def heard(self) -> list[Any]:
        """Return pushed messages, or none after the timeout of the connection.

        It reads without asking first whether there is something to read: beside a thread that
        computes, each system call may cost a turn at the interpreter, which is 5 ms.
        """
        heard: list[Any] = []
        try:
            until = time.monotonic() + self._timeout
            while not heard:
                self._receive(until)
                while (reply := self._next_reply()) is not _INCOMPLETE:
                    heard.append(reply)
        except (BlockingIOError, TimeoutError):
            return heard
        except (OSError, hiredis.ProtocolError) as error:
            self.discard()
            raise self._explained(error) from error
        return heard

    def discard(self) -> None:
        self.alive = False
        self._connection.disconnect()

    close = discard

    def usable(self) -> bool:
        """Whether the server has kept the connection open, so that a request can arrive.

        A connection that has just received a reply is not checked: that would cost each request a system call.
        """
        if time.monotonic() - self.used_at < FRESH:
            return self.alive
        if self.alive and self._poll.poll(0):  # The end: we have not asked for anything.
            self.discard()
        return self.alive

    def _fail(self, error: BaseException) -> None:
        """Discard the connection, and raise redis-py's error for it, if there is one."""
        self.discard()
        if isinstance(error, Exception):
            raise self._explained(error) from error

    def _explained(self, error: BaseException) -> BaseException:
        match error:
            case TimeoutError() | BlockingIOError():
                return exceptions.TimeoutError(f"no answer for {self._timeout:g} s")
            case OSError() | hiredis.ProtocolError():
                return exceptions.ConnectionError(f"the connection was lost: {error}")
        return error

    def _receive(self, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        # Each signal makes a timeout of the kernel begin anew. Signals come to the main thread, which
        # therefore asks ``poll`` first. That costs a system call, and Python counts its time correctly.
        if self._polls and current_thread() is main_thread() and not self._poll.poll(1000 * left):
            raise TimeoutError
        size = self._receive_into(self._buffer)
        if not size:
            raise ConnectionResetError("closed")
        self._feed(self._buffer, 0, size)  # type: ignore[arg-type]  # It takes any buffer.


class TwoPhaseLink(BlockingLink):
    """A link whose requests suspend between sending and receiving: see ``ports.sent``.

    A caller that need not wait any longer closes its request. The reply is dropped when it comes.
    """

    def __init__(self, address: Address, connection: redis.Connection) -> None:
        super().__init__(address, connection)
        self._polls = False  # The caller polls before it goes on.
        self._unwanted = 0
        """Replies on their way that no caller waits for."""

    async def ask(self, command: bytes, count: int | None = None) -> Any:
        """Send a command, and return its reply; with a count, the list of so many replies."""
        unwanted = self._unwanted
        missing = unwanted + (count or 1)
        replies: list[Any] = []
        self.alive = False
        try:
            until = time.monotonic() + self._timeout
            self._send(command)
            while len(replies) < missing:
                await sent(self._socket.fileno(), until)
                self._receive(until)
                while (reply := self._next_reply()) is not _INCOMPLETE:
                    replies.append(reply)
        except GeneratorExit:
            self._unwanted = missing - len(replies)
            self.alive = True
            raise
        except BaseException as error:
            self._fail(error)
            raise
        self._unwanted = 0
        self.alive = True
        return replies[unwanted:] if count else replies[-1]

    async def exchange(self, commands: Sequence[bytes]) -> list[Any]:
        replies: list[Any] = await self.ask(b"".join(commands), len(commands))
        return replies

    def usable(self) -> bool:
        if self._unwanted and self.alive and self._poll.poll(0):
            try:
                self._receive(time.monotonic() + self._timeout)
                while self._next_reply() is not _INCOMPLETE:
                    self._unwanted -= 1
            except (OSError, hiredis.ProtocolError):
                self.discard()
        if time.monotonic() - self.used_at < FRESH:  # As ``super``, which each request would call.
            return self.alive
        return super().usable()


def connected(
    address: Address,
    connection: redis.Connection,
    link: Callable[[Address, redis.Connection], BlockingLink] = BlockingLink,
) -> BlockingLink:
    """Let redis-py connect and authenticate, and take the connection over."""
    try:
        with connecting():
            connection.connect()
    except BaseException:
        connection.disconnect()
        raise
    return link(address, connection)


Lent = BlockingLink | Loan


class BlockingLinks:
    """A pool: as many connections as threads talk to a server at the same time, at most ``room``.

    With ``connects_within``, requests suspend where they would block: see ``ports.sent``.
    """

    def __init__(
        self,
        connect: Connect,
        receiver: Receiver,
        *,
        room: int,
        patience: float,
        connects_within: float | None = None,
        borrow: Callable[[Address], Lent | None] | None = None,
    ) -> None:
        self._connect = connect
        self._borrow = borrow
        """Returns a connection of another pool, where this one can open none."""
        self._wanted: dict[Address, SimpleQueue[BlockingLink]] = {}
        """Where the next connection goes that comes back, ahead of all callers that wait for one."""
        self._connects_within = connects_within
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
        return self._receiver.channel

    def listen(self) -> None:
        self._receiver.listen()

    async def aside(self, work: Callable[[], None]) -> None:
        work()

    async def together(self, works: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Run each but the last in a thread of its own, as far as threads can be started."""
        *others, last = works
        threads, here = [], [last]
        for work in others:
            thread = Thread(target=_driven, args=(work,), name="weblock-side-by-side", daemon=True)
            try:
                thread.start()
                threads.append(thread)
            except RuntimeError:
                here.append(work)
        for work in here:
            await work
        for thread in threads:
            thread.join()

    def move(self) -> None:
        """Do nothing: the receiver listens for all connections, and moves by itself."""

    def at_once(self, address: Address, permits: list[None]) -> BlockingLink | None:
        try:
            permits += map(self.free.get, _NOW)
            link = self._idle[address].pop()
        except (Empty, LookupError):
            return None
        return link if link.usable() else None

    async def take(self, address: Address, introduce: Introduce, permits: list[None]) -> Lent:
        if self._connects_within is not None:
            if not permits and (link := self.at_once(address, permits)):
                return link
            await sent(None, time.monotonic() + self._connects_within)
        if not permits:
            try:
                permits += map(self.free.get, (True,), (self._patience,))
            except Empty:
                raise self._turn_in_vain() from None
        try:
            return self._idle_link(address) or await self._new_link(address, introduce)
        except (exceptions.RedisError, Unfit, OSError):
            lent = self._borrow(address) if self._borrow and not self._closed else None
            if lent is None:
                raise
            return lent

    def give_back(self, link: Link) -> None:
        assert isinstance(link, BlockingLink | Loan)
        if link.home:
            link.home.take_back(link)
        elif isinstance(link, BlockingLink) and link.alive:
            link.used_at = self._answered_at = time.monotonic()
            if self._wanted and (wanted := self._wanted.pop(link.address, None)):
                wanted.put(link)
            else:
                self._idle.setdefault(link.address, []).append(link)
            if self._closed:
                self._close_idle()
        else:
            self._discard(link)

    def lend(self, address: Address) -> BlockingLink | None:
        if self._borrow:  # This is the pool of the keeper itself.
            return None
        link = self._idle_link(address)
        if link is None:
            wanted = self._wanted[address] = SimpleQueue()
            with suppress(Empty):
                link = wanted.get(timeout=LOAN)
            # If a caller has taken the queue, it is about to put its connection there.
            if link is None and self._wanted.pop(address, None) is None:
                with suppress(Empty):
                    link = wanted.get(timeout=LOAN)
        if link:
            link.home = self
        return link

    def take_back(self, link: BlockingLink) -> None:
        """Keep for the callers what was lent."""
        link.home = None
        if link.alive and not self._closed:
            self._idle.setdefault(link.address, []).append(link)
        else:
            self._discard(link)

    def _turn_in_vain(self) -> Unfit:
        """Return the error for a caller that got no connection.

        If the server answers, a connection comes back every few milliseconds. If none has come back for
        long, the others wait for the server, and more connections would only wait with them.
        """
        silent = time.monotonic() - self._answered_at >= self._patience / 2
        if silent:
            return Unfit(explained(exceptions.TimeoutError(f"no answer for {self._patience:g} s")))
        return Unfit(f"all {self._size} connections are in use: raise max_connections")

    def _discard(self, link: Lent) -> None:
        others = [] if link.alive else self._idle.pop(link.address, [])
        for each in (link, *others):
            each.discard()

    def tidy(self) -> None:
        for idle in tuple(self._idle.values()):
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
        for links in tuple(self._idle.values()):
            for each in taken_out(links):
                each.discard()

    def _idle_link(self, address: Address) -> BlockingLink | None:
        idle = self._idle.get(address, [])
        while True:
            try:
                link = idle.pop()
            except IndexError:
                return None
            if link.usable():
                return link

    async def _new_link(self, address: Address, introduce: Introduce) -> BlockingLink:
        if self._closed:
            raise Unfit("it was closed")
        connection = self._connect(address)
        kind = BlockingLink if self._connects_within is None else TwoPhaseLink
        link = connected(address, connection, kind)
        try:
            await introduce(link)
        except BaseException:
            link.discard()
            raise
        return link


def _driven(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine of the blocking face, which never suspends."""
    with suppress(StopIteration):
        work.send(None)


def time_out_in_kernel(sock: socket.socket) -> None:
    """Let the kernel watch over a socket's timeout, where it can.

    A socket with a timeout of Python's own is polled before it is written to or read: a system call
    more for each, and one more turn at the interpreter. One that timed out in the kernel raises
    ``BlockingIOError``.
    """
    seconds = sock.gettimeout()
    plain = (
        type(sock) is socket.socket and patched_by() is None
    )  # TLS and greenlets have their own.
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
