"""TLS in front of a server that does not speak it, with certificates of our own."""

from __future__ import annotations

import asyncio
import ssl
import threading
from typing import Self

import trustme

from .single import Server


class TlsFront:
    """Ends TLS on a port of its own, and passes on what it hears.

    ``hosts`` are on its certificate. With ``asks``, it refuses a client without one of the CA's.
    """

    def __init__(self, server: Server, ca: trustme.CA, *hosts: str, asks: bool = False) -> None:
        self._server = server
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        ca.issue_cert(*hosts).configure_cert(self._context)
        if asks:
            ca.configure_trust(self._context)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()
        self._ready.wait()

    async def _run(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port: int = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._ended.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            await asyncio.wait([task])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self._server.port)
        try:
            await asyncio.wait(
                [
                    asyncio.ensure_future(_pump(reader, there[1])),
                    asyncio.ensure_future(_pump(there[0], writer)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for each in (there[1], writer):
                each.transport.abort()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
