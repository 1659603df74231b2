"""FastAPI on a real uvicorn, with clients that read slowly, or leave."""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from fastapi import Depends, FastAPI

from tests.support.aio import PATIENCE, eventually, until_waited_for
from weblock import AsyncLocks
from weblock.contrib.fastapi import install, lock

LARGE = 1000 * 1000
REQUEST = "POST {path} HTTP/1.1\r\nHost: shop\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

_numbers = itertools.count()


@pytest.fixture
async def locks() -> AsyncIterator[AsyncLocks]:
    """Locks of this test's own."""
    async with AsyncLocks.from_url(f"memory://uvicorn-{next(_numbers)}", wait=PATIENCE) as locks:
        yield locks


@pytest.fixture
def app(locks: AsyncLocks) -> FastAPI:
    """An application with locks, which never sends a held-back response early."""
    app = FastAPI()
    install(app, locks, hold_back=PATIENCE)
    return app


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[tuple[str, int]]:
    """Its address, while uvicorn serves it on this event loop."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Little is buffered between the two, so that a slow client is felt at once.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, server, "should_exit", True)
            serving = asyncio.ensure_future(server.serve([listener]))
            await eventually(lambda: server.started)
            yield listener.getsockname()[:2]
        await serving


@asynccontextmanager
async def raw_client(address: tuple[str, int], path: str) -> AsyncIterator[socket.socket]:
    """A connection that has sent a request and reads nothing by itself."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, address)
        await loop.sock_sendall(client, REQUEST.format(path=path).encode())
        yield client


async def read_all(client: socket.socket) -> bytes:
    """What the client is sent until the server closes."""
    loop = asyncio.get_running_loop()
    parts = []
    async with asyncio.timeout(PATIENCE):
        while part := await loop.sock_recv(client, 65536):
            parts.append(part)
    return b"".join(parts)


async def test_a_slow_reader_does_not_keep_the_lock(app, locks):
    """While one client does not read its large response, the next request is served."""
    made = []

    @app.post("/items", dependencies=[Depends(lock("create_item"))])
    def create() -> str:
        made.append(1)
        return "x" * LARGE

    async with served(app) as address, raw_client(address, "/items") as slow:
        await eventually(lambda: made)
        lease = await locks.acquire("create_item")
        await lease.release()
        url = "http://{}:{}/items".format(*address)
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            assert len((await client.post(url)).json()) == LARGE
        assert (await read_all(slow)).endswith(b'x"')


async def test_a_client_that_leaves_while_it_waits_never_has_its_handler_run(app, locks):
    """Its place in the queue is given up, and the others go on."""
    ran = []

    @app.post("/items/{name}", dependencies=[Depends(lock("create_item", wait=None))])
    def create(name: str) -> None:
        ran.append(name)

    async with served(app) as address:
        holder = await locks.acquire("create_item")
        async with raw_client(address, "/items/leaves"):
            await until_waited_for(locks, "create_item")
        await until_waited_for(locks, "create_item", by=0)
        async with raw_client(address, "/items/stays") as stays:
            await until_waited_for(locks, "create_item")
            await holder.release()
            assert b" 200 OK" in await read_all(stays)
    assert ran == ["stays"]


async def test_a_handler_whose_client_leaves_ends_inside_the_lock(app, locks):
    """Nobody gets in between, whatever its client does."""
    began, go_on, ended = asyncio.Event(), asyncio.Event(), []

    @app.post("/items", dependencies=[Depends(lock("create_item"))])
    async def create() -> None:
        began.set()
        await go_on.wait()
        ended.append(True)

    async with served(app) as address:
        async with raw_client(address, "/items"):
            await began.wait()
        for _ in range(50):  # Time for the server to notice.
            assert await locks.try_acquire("create_item") is None
            await asyncio.sleep(0.001)
        go_on.set()
        await (await locks.acquire("create_item")).release()
        assert ended == [True]
