"""Connections of the blocking world: one thread has one for the length of a round trip."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import hiredis
import redis
from redis import exceptions
from redis._parsers.base import BaseParser  # Not said to be public; a test holds us to it.

from ..._core.ports import Readable
from .nodes import Connect
from .servers import Server, Unfit
from .settings import Address
from .wire import Introduce, Link

if TYPE_CHECKING:
    from .receiver import Receiver

_INCOMPLETE: Final = object()

_CHUNK: Final = 16384

SPARE: Final = 2.0
"""Seconds for which a connection stays open that nobody needs, if it is not the only one."""


class BlockingLink:
    """One connection, from its handshake on, without the layers that redis-py has above its socket."""

    server: Server

    def __init__(
        self, address: Address, connection: redis.Connection, *, takes_turns: bool = False
    ) -> None:
        self.address = address
        self._takes_turns = takes_turns
        self.used_at = time.monotonic()
        self.alive = True
        """Whether nothing has gone wrong on it yet."""
        self._connection = connection
        # redis-py has no public way to hand a connection over.
        self._socket: socket.socket = connection._sock  # type: ignore[assignment]  # noqa: SLF001
        self._reader = hiredis.Reader(replyError=BaseParser.parse_error, notEnoughData=_INCOMPLETE)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    async def exchange(self, commands: Sequence[bytes]) -> list[Any]:
        try:
            self._socket.sendall(b"".join(commands))
            if self._takes_turns:
                return [await self._reply_in_turn() for _ in commands]
            return [self._reply() for _ in commands]
        except BaseException as error:  # A reply that is left here would be taken for another's.
            self.discard()
            raise self._explained(error) from error

    def send(self, command: bytes) -> None:
        """Sends what is answered sooner or later, if at all: see ``heard``."""
        try:
            self._socket.sendall(command)
        except OSError as error:
            self.discard()
            raise self._explained(error) from error

    def heard(self, timeout: float) -> list[Any]:
        """What has come unasked, after waiting at most so many seconds for something to come."""
        try:
            if not self._poll.poll(1000 * timeout):
                return []
            heard = [self._reply()]
            while (reply := self._reader.gets()) is not _INCOMPLETE:
                heard.append(reply)
        except (OSError, hiredis.ProtocolError) as error:
            self.discard()
            raise self._explained(error) from error
        return heard

    def discard(self) -> None:
        self.alive = False
        self._connection.disconnect()

    def usable(self) -> bool:
        """Whether the server has left it open since, so that what is sent there can arrive."""
        if self.alive and self._poll.poll(0):  # The end: we have not asked for anything.
            self.discard()
        return self.alive

    def _explained(self, error: BaseException) -> BaseException:
        match error:
            case TimeoutError():
                return exceptions.TimeoutError(f"no answer for {self._socket.gettimeout():g} s")
            case OSError() | hiredis.ProtocolError():
                return exceptions.ConnectionError(f"the connection was lost: {error}")
        return error

    def _reply(self) -> Any:
        while (reply := self._reader.gets()) is _INCOMPLETE:
            self._receive()
        return reply

    async def _reply_in_turn(self) -> Any:
        while (reply := self._reader.gets()) is _INCOMPLETE:
            if not await Readable(self._socket.fileno(), self._socket.gettimeout()):
                raise TimeoutError
            self._receive()
        return reply

    def _receive(self) -> None:
        data = self._socket.recv(_CHUNK)
        if not data:
            raise ConnectionResetError("closed")
        self._reader.feed(data)


def connected(
    address: Address, connection: redis.Connection, *, takes_turns: bool = False
) -> BlockingLink:
    """Has redis-py connect and say who we are, and takes the connection over."""
    connection.connect()
    return BlockingLink(address, connection, takes_turns=takes_turns)


class BlockingLinks:
    """As many connections as threads talk to a server at the same time, and no more than ``room``.

    Where they take turns, a thread talks to several servers at the same time (``side_by_side``).
    """

    def __init__(
        self,
        connect: Connect,
        receiver: Receiver,
        *,
        room: int,
        patience: float,
        takes_turns: bool = False,
    ) -> None:
        self._connect = connect
        self._takes_turns = takes_turns
        self._receiver = receiver
        self._patience = patience
        self._size = room
        self._room = threading.BoundedSemaphore(room)
        self._idle: dict[Address, list[BlockingLink]] = {}
        self._closed = False

    @property
    def process(self) -> str:
        return self._receiver.channel

    def listen(self) -> None:
        self._receiver.listen()

    async def aside(self, work: Callable[[], None]) -> None:
        work()

    async def take(self, address: Address, introduce: Introduce) -> BlockingLink:
        if not self._room.acquire(timeout=self._patience):
            raise Unfit(f"all {self._size} connections are in use: raise max_connections")
        try:
            return self._idle_link(address) or await self._new_link(address, introduce)
        except BaseException:
            self._room.release()
            raise

    def give_back(self, link: Link) -> None:
        assert isinstance(link, BlockingLink)
        if not link.alive:
            for other in self._idle.pop(link.address, []):
                other.discard()
        elif self._closed:
            link.discard()
        else:
            link.used_at = time.monotonic()
            self._idle.setdefault(link.address, []).append(link)
        self._room.release()

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
        for links in tuple(self._idle.values()):
            while links:
                links.pop().discard()

    def abandon(self) -> None:
        """Closes the copies that a forked child has inherited; the parent's stay as they are."""
        self._room = threading.BoundedSemaphore(self._size)
        self.close()
        self._closed = False

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
        if self._takes_turns:
            link = await _aside(partial(connected, address, connection, takes_turns=True))
        else:
            link = connected(address, connection)
        try:
            await introduce(link)
        except BaseException:
            link.discard()
            raise
        return link


async def _aside(work: Callable[[], BlockingLink]) -> BlockingLink:
    """What ``work`` returns, which a thread of its own does, so that others need not wait."""
    ours, theirs = socket.socketpair()
    outcome: list[BlockingLink | BaseException] = []

    def do() -> None:
        with theirs:
            try:
                outcome.append(work())
            except BaseException as error:  # noqa: BLE001 - raised to the one who waits
                outcome.append(error)

    threading.Thread(target=do, name="weblock-connecting", daemon=True).start()
    with ours:
        await Readable(ours.fileno(), None)
    (made,) = outcome
    if isinstance(made, BaseException):
        raise made
    return made
