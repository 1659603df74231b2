"""How fast a lock on Redis can be at all, asked of nothing but the few commands that it takes.

No lock to be used: nobody renews, nobody notices a waiter that is gone.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from types import TracebackType
from typing import Any, Final, cast

import hiredis
import redis
import redis.asyncio

TTL: Final = "10000"

DELETE_IF_MINE: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

ACQUIRE_OR_QUEUE: Final = """
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[3]) then return 1 end
redis.call('RPUSH', KEYS[2], ARGV[2] .. ' ' .. ARGV[1])
return 0
"""

HAND_ON: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local first = redis.call('LPOP', KEYS[2])
if not first then return redis.call('DEL', KEYS[1]) end
local channel, owner = string.match(first, '(%S+) (%S+)')
redis.call('SET', KEYS[1], owner, 'PX', ARGV[2])
redis.call('PUBLISH', channel, owner)
return 1
"""


class RoundTrips:
    """A section by two round trips of redis-py, if nobody else wants the key."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._client = client
        self._key = f"raw:{key}"
        self._token = f"{os.getpid()}:{id(self)}"
        self._sha: str = client.script_load(DELETE_IF_MINE)

    def __enter__(self) -> None:
        assert self._client.set(self._key, self._token, nx=True, px=int(TTL))

    def __exit__(
        self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None
    ) -> None:
        self._client.evalsha(self._sha, 1, self._key, self._token)


class AsyncioRoundTrips:
    """The same with the asyncio API of redis-py."""

    def __init__(self, client: redis.asyncio.Redis, key: str) -> None:
        self._client = client
        self._key = f"raw:{key}"
        self._token = f"{os.getpid()}:{id(self)}"
        self._sha = ""

    async def __aenter__(self) -> None:
        if not self._sha:
            self._sha = await self._client.script_load(DELETE_IF_MINE)
        assert await self._client.set(self._key, self._token, nx=True, px=int(TTL))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None
    ) -> None:
        await self._client.evalsha(self._sha, 1, self._key, self._token)


class Push:
    """A section by one script to queue, one to hand on, and one push to whoever is next.

    All waiters of a process share one connection.
    """

    _numbers = itertools.count()

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._keys = (f"push:{key}", f"push:{key}:queue")
        self._owner = f"{os.getpid()}:{next(self._numbers)}"
        self._line: _Line | None = None

    async def __aenter__(self) -> None:
        self._line = line = await _line_to(self._port)
        rung = line.mailbox(self._owner)
        arguments = (self._owner, line.channel, TTL)
        if not await line.ask("EVALSHA", line.acquire, "2", *self._keys, *arguments):
            await rung

    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None
    ) -> None:
        assert self._line
        await self._line.ask("EVALSHA", self._line.hand_on, "2", *self._keys, self._owner, TTL)


class _Line(asyncio.Protocol):
    """One connection: what is asked in one turn of the loop is written at once."""

    acquire: str
    hand_on: str

    def __init__(self) -> None:
        self.channel = f"push:{os.getpid()}"
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=self)
        self._pending: deque[asyncio.Future[Any]] = deque()
        self._mailboxes: dict[bytes, asyncio.Future[None]] = {}
        self._outgoing: list[bytes] = []
        self._transport: asyncio.Transport

    async def introduce(self) -> None:
        name = f"weblock-{os.getpid()}"
        await self.ask("HELLO", "3", "SETNAME", name)
        self.acquire = (await self.ask("SCRIPT", "LOAD", ACQUIRE_OR_QUEUE)).decode()
        self.hand_on = (await self.ask("SCRIPT", "LOAD", HAND_ON)).decode()
        self._send("SUBSCRIBE", self.channel)  # Answered by a push.
        await self.ask("PING")

    def mailbox(self, owner: str) -> asyncio.Future[None]:
        mailbox = self._mailboxes[owner.encode()] = self._loop.create_future()
        return mailbox

    def ask(self, *command: str) -> asyncio.Future[Any]:
        reply: asyncio.Future[Any] = self._loop.create_future()
        self._pending.append(reply)
        self._send(*command)
        return reply

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not self:
            if not isinstance(reply, hiredis.PushNotification):
                self._pending.popleft().set_result(reply)
            elif reply[0] == b"message":
                self._mailboxes.pop(reply[2]).set_result(None)

    def _send(self, *command: str) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(hiredis.pack_command(command))  # type: ignore[arg-type]  # It takes more.

    def _flush(self) -> None:
        self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()


_lines: dict[tuple[asyncio.AbstractEventLoop, int], asyncio.Future[_Line]] = {}


async def _line_to(port: int) -> _Line:
    loop = asyncio.get_running_loop()
    made = _lines.get((loop, port))
    if made is None:
        made = _lines[loop, port] = loop.create_task(_connected(port))
    return made.result() if made.done() else await made


async def _connected(port: int) -> _Line:
    loop = asyncio.get_running_loop()
    _, line = await loop.create_connection(_Line, "127.0.0.1", port)
    await line.introduce()
    return line
