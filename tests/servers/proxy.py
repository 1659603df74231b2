"""A network in front of a server, as bad as a test wants it."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Literal, NamedTuple, Self, TypeVar

from tests.support.waiting import PATIENCE

from .frames import Frames, is_pubsub
from .single import Server

T = TypeVar("T")

Direction = Literal["requests", "replies"]
Then = Literal["close", "silence"]

_AT_ONCE = struct.pack("ii", 1, 0)
"""To linger for no time: a connection that is closed so is reset."""


class Listener(NamedTuple):
    """Whoever listens on a port of loopback."""

    port: int


class Fault:
    """One that strikes once, later."""

    def __init__(self, k: int, to: bytes, then: Then) -> None:
        self._left = k
        self._to = to.upper()
        self.then = then
        self._happened = threading.Event()

    @property
    def happened(self) -> bool:
        return self._happened.is_set()

    def wait(self) -> None:
        """Returns when it has happened."""
        assert self._happened.wait(PATIENCE), "the fault has not happened"

    def strikes(self, request: bytes) -> bool:
        """Whether it does so at this request, or at the reply to it."""
        if self.happened or self._to not in request.upper():
            return False
        self._left -= 1
        if self._left == 0:
            self._happened.set()
        return self.happened


class Proxy:
    """Passes on what clients and a server say to each other, and disturbs it while it runs.

    When a method returns, what it does has begun, for the connections that there are and, but for
    ``half_close`` and ``reset``, for new ones. Where no direction is named, both are meant.
    """

    def __init__(self, server: Server | Listener) -> None:
        self._server = server
        self._ways = {"requests": _Way(), "replies": _Way()}
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        listening = asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._listener = self._run(listening)
        self.port: int = self._listener.sockets[0].getsockname()[1]

    def url(self, **options: Any) -> str:
        """The server's URL, by way of the proxy; the options are those of ``Server.url``."""
        assert isinstance(self._server, Server)
        return self._server.url(port=self.port, **options)

    @property
    def connections(self) -> int:
        return len(self._links)

    def heal(self) -> None:
        """Ends every fault but those that connections already have behind them."""
        self._each(None, _Way.heal)

    def delay(self, ms: float, direction: Direction | None = None) -> None:
        """Has everything arrive so much later, in its order."""
        self._each(direction, lambda way: way.be_late(ms / 1000))

    def freeze(self, direction: Direction | None = None) -> None:
        """Keeps back what is said, and that a connection ends, until ``thaw``."""
        self._each(direction, lambda way: way.gate.clear())

    def thaw(self, direction: Direction | None = None) -> None:
        """Passes on what was kept back, and what follows."""
        self._each(direction, lambda way: way.gate.set())

    def drip(self, direction: Direction | None = None) -> None:
        """Has everything arrive a few bytes at a time."""
        self._each(direction, _Way.begin_to_drip)

    def drop_request(self, k: int = 1, *, to: bytes = b"", then: Then = "close") -> Fault:
        """Loses the ``k``-th request from now that contains ``to``: the server never hears it.

        Then the connection is closed, or nothing is heard in that direction ever after.
        """
        return self._drop("requests", Fault(k, to, then))

    def drop_reply(self, k: int = 1, *, to: bytes = b"", then: Then = "close") -> Fault:
        """Loses the reply to the ``k``-th request that contains ``to``: the server has acted on it.

        It counts the replies from now on, and what is pushed to subscribers is none.
        """
        return self._drop("replies", Fault(k, to, then))

    def half_close(self, direction: Direction) -> None:
        """Ends one direction of each connection, in good order; the other goes on."""
        self._on_links(lambda link: link.end(direction))

    def reset(self) -> None:
        self._on_links(_Link.cancel)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _drop(self, direction: Direction, fault: Fault) -> Fault:
        self._each(direction, lambda way: way.faults.append(fault))
        return fault

    def _each(self, direction: Direction | None, change: Callable[[_Way], object]) -> None:
        async def apply() -> None:
            for name, way in self._ways.items():
                if direction in (None, name):
                    change(way)

        self._run(apply())

    def _on_links(self, change: Callable[[_Link], object]) -> None:
        async def apply() -> None:
            for link in list(self._links):
                change(link)

        self._run(apply())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The outcome of what only the proxy's own thread may do."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self._ways)
        self._links.add(link)
        link.task = self._loop.create_task(link.run(self._server.port, reader, writer))
        link.task.add_done_callback(lambda _: self._links.discard(link))

    async def _end(self) -> None:
        self._listener.close()
        # Somebody may just be being accepted, and is then a link of its own.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for link in self._links:
                link.cancel()
            await asyncio.wait(others)


class _Way:
    """What befalls everything that goes one way."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.faults: list[Fault] = []
        self.dripping = False
        self._late = 0.0
        self._changed = asyncio.Event()
        self.gate.set()

    def heal(self) -> None:
        self.be_late(0)
        self.dripping = False
        self.faults.clear()
        self.gate.set()

    def be_late(self, by: float) -> None:
        self._late = by
        self._changed.set()
        self._changed = asyncio.Event()

    async def due(self, heard: float) -> None:
        """Returns when that which was heard then may be passed on."""
        loop = asyncio.get_running_loop()
        while (early := heard + self._late - loop.time()) > 0:
            try:
                async with asyncio.timeout(early):
                    await self._changed.wait()
            except TimeoutError:
                pass
        await self.gate.wait()

    def begin_to_drip(self) -> None:
        self.dripping = True

    def lost(self, request: bytes) -> Fault | None:
        """The fault, if one strikes. Each sees each request, and so counts for itself."""
        struck = [fault for fault in self.faults if fault.strikes(request)]
        return struck[0] if struck else None


class _Link:
    """A client's connection and the one to the server."""

    def __init__(self, ways: dict[str, _Way]) -> None:
        self.task: asyncio.Task[None] | None = None
        self._flows: dict[str, _Flow] = {}
        self._ways = ways
        self._asked: deque[bytes] = deque()
        self._writers: list[asyncio.StreamWriter] = []

    async def run(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Passes on until both sides have ended, or one is reset."""
        self._writers.append(writer)
        try:
            there = await asyncio.open_connection("127.0.0.1", port)
            self._writers.append(there[1])
            to_server = _Flow(reader, there[1], self._ways["requests"], self._request)
            to_client = _Flow(there[0], writer, self._ways["replies"], self._reply)
            self._flows = {"requests": to_server, "replies": to_client}
            await self._pass_on()
            for each in self._writers:
                each.close()
            for each in self._writers:
                await each.wait_closed()
        except* OSError:
            pass  # One side is reset, or not there: so is the other, here.
        finally:
            self._reset()

    def end(self, direction: Direction) -> None:
        if direction in self._flows:
            self._flows[direction].end()

    def cancel(self) -> None:
        if self.task:
            self.task.cancel()

    async def _pass_on(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for flow in self._flows.values():
                    group.create_task(flow.listen())
                    group.create_task(flow.speak())
        except* _CutOff:
            pass

    def _reset(self) -> None:
        for writer in self._writers:
            sock = writer.get_extra_info("socket")
            if sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                writer.transport.abort()

    def _request(self, frame: bytes) -> Fault | None:
        fault = self._ways["requests"].lost(frame)
        if not fault and not is_pubsub(frame):
            self._asked.append(frame)
        return fault

    def _reply(self, frame: bytes) -> Fault | None:
        if is_pubsub(frame):
            return None
        return self._ways["replies"].lost(self._asked.popleft() if self._asked else b"")


class _CutOff(Exception):
    """A fault closes a connection, in good order."""


class _Flow:
    """One direction of one link."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: _Way,
        inspect: Callable[[bytes], Fault | None],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._way = way
        self._inspect = inspect
        self._heard: asyncio.Queue[tuple[float, bytes | OSError]] = asyncio.Queue()
        self._silent = False

    async def listen(self) -> None:
        """Hears all that is said, whether or not it can be passed on yet."""
        now = asyncio.get_running_loop().time
        frames = Frames()
        try:
            while data := await self._reader.read(65536):
                for frame in frames.feed(data):
                    self._heard.put_nowait((now(), frame))
        except OSError as error:
            self._heard.put_nowait((now(), error))
        for rest in (*frames.rest(), b""):
            self._heard.put_nowait((now(), rest))

    async def speak(self) -> None:
        """Passes it on, in its order, at its time."""
        while True:
            heard, what = await self._heard.get()
            await self._way.due(heard)
            if isinstance(what, OSError):
                raise what
            if not what:
                return self.end()
            fault = None if self._silent else self._inspect(what)
            if fault and fault.then == "close":
                raise _CutOff
            self._silent = self._silent or fault is not None
            if not self._silent:
                await self._write(what)

    def end(self) -> None:
        self._silent = True
        if not self._writer.is_closing():
            self._writer.write_eof()

    async def _write(self, data: bytes) -> None:
        # Not each byte by itself: that costs a busy machine more time than clients have.
        step = 5 if self._way.dripping else len(data)
        for at in range(0, len(data), step):
            if self._silent:  # It was half-closed meanwhile.
                return
            self._writer.write(data[at : at + step])
            await self._writer.drain()
            if step < len(data):
                await asyncio.sleep(0)
