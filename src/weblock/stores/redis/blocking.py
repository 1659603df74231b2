"""Connections of the blocking world: one thread has one for the length of a round trip."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis import exceptions

from .nodes import Connect
from .receiver import Receiver
from .servers import Server, Unfit
from .settings import Address
from .wire import Introduce, Link


class BlockingLink:
    """One connection."""

    server: Server

    def __init__(self, address: Address, connection: redis.Connection) -> None:
        self.address = address
        self._connection = connection

    async def exchange(self, commands: Sequence[bytes]) -> list[Any]:
        self._connection.send_packed_command([b"".join(commands)], check_health=False)
        return [self._reply() for _ in commands]

    def discard(self) -> None:
        self._connection.disconnect()

    @property
    def alive(self) -> bool:
        """Whether nothing has gone wrong on it yet."""
        return self._connection.is_connected

    def usable(self) -> bool:
        """Whether the server has left it open since, so that what is sent there can arrive."""
        try:
            stray = self._connection.can_read(0)
        except exceptions.RedisError:
            stray = True
        if stray:  # The end of the stream, for we have not asked for anything.
            self.discard()
        return not stray

    def _reply(self) -> Any:
        try:
            return self._connection.read_response(disable_decoding=True)
        except exceptions.ResponseError as error:
            return error


class BlockingLinks:
    """As many connections as threads talk to a server at the same time, and no more than ``room``."""

    def __init__(self, connect: Connect, receiver: Receiver, *, room: int, patience: float) -> None:
        self._connect = connect
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
            self._idle.setdefault(link.address, []).append(link)
        self._room.release()

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
        connection.connect()
        link = BlockingLink(address, connection)
        try:
            await introduce(link)
        except BaseException:
            link.discard()
            raise
        return link
