"""One address for several servers: a load balancer, as there is one in front of pods."""

from __future__ import annotations

import asyncio
import itertools
import resource
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

HOST: Final = "127.0.0.1"

BACKLOG: Final = 1000
"""Connections that may come at once."""

OPEN_FILES: Final = 2048


@asynccontextmanager
async def balancing(ports: Sequence[int]) -> AsyncIterator[str]:
    """The URL whose connections go to the servers at ``ports`` in turn, while the block lasts."""
    _allow_open_files()
    turns = itertools.cycle(ports)
    open_connections: set[asyncio.Task[None]] = set()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(HOST, next(turns))
        except OSError:
            writer.close()  # That server is dead, and its turn is its client's bad luck.
            return
        await asyncio.gather(_hand_on(reader, server_writer), _hand_on(server_reader, writer))

    def accept(reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        open_connections.add(task)
        task.add_done_callback(open_connections.discard)

    listener = await asyncio.start_server(accept, HOST, backlog=BACKLOG)
    try:
        yield f"http://{HOST}:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()
        for each in open_connections:
            each.cancel()
        await asyncio.gather(*open_connections, return_exceptions=True)


def _allow_open_files() -> None:
    """Asks for more than the 256 or 1024 that a shell may grant: each request opens three here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES:
        with suppress(ValueError, OSError):  # There may be no more to have, nor a need.
            resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))


async def _hand_on(reader: StreamReader, writer: StreamWriter) -> None:
    """Hands on what one side says. When that side is gone, the other one is hung up on."""
    try:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()
