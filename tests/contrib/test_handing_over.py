"""Requests that hand their lease over to a worker: their end releases nothing, and says nothing of a loss."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI
from flask import Flask

from tests.support.http import client_of
from weblock import AsyncLease, AsyncLocks, Lease, Locks
from weblock.contrib.fastapi import install, lock
from weblock.contrib.flask import WebLock, lease_of

_numbers = itertools.count()

LARGE = 2 * 1024 * 1024
"""Bytes of a response that is not held back until its end."""


@pytest.fixture
def url() -> str:
    return f"memory://handing-over-{next(_numbers)}"


def works_off(url: str, token: str) -> None:
    """A worker, in a thread of its own: the key is held until it takes over, and then free."""
    with Locks.from_url(url) as locks, ThreadPoolExecutor(1) as thread:
        assert locks.try_acquire("x") is None
        thread.submit(locks.take_over(token).release).result()
        assert locks.inspect("x") is None


@pytest.mark.parametrize("size", [1, LARGE])
@pytest.mark.parametrize("blocking", [False, True])
async def test_fastapi(url: str, *, blocking: bool, size: int) -> None:
    """In an ``async def`` endpoint and in a thread; the response is the endpoint's own."""
    tokens: list[str] = []
    app = FastAPI()

    @app.post("/async", status_code=202)
    async def in_the_loop(lease: Annotated[AsyncLease, Depends(lock("x"))]) -> str:
        tokens.append(await lease.hand_over(ttl=60))
        return "x" * size

    @app.post("/blocking", status_code=202)
    def in_a_thread(lease: Annotated[Lease, Depends(lock("x"))]) -> str:
        tokens.append(lease.hand_over(ttl=60))
        return "x" * size

    async with AsyncLocks.from_url(url) as locks:
        install(app, locks)
        async with client_of(app) as client:
            response = await client.post("/blocking" if blocking else "/async")
        assert (response.status_code, len(response.json())) == (202, size)
        works_off(url, *tokens)


@pytest.mark.parametrize("size", [1, LARGE])
def test_flask(url: str, size: int) -> None:
    """A view's lease, and its response, however large."""
    tokens: list[str] = []
    with Locks.from_url(url) as locks:
        web = WebLock(locks=locks)
        app = Flask(__name__)
        web.init_app(app)

        @app.post("/items")
        @web.lock("x")
        def enqueue() -> tuple[str, int]:
            tokens.append(lease_of().hand_over(ttl=60))
            return "x" * size, 202

        response = app.test_client().post("/items")
        assert (response.status_code, len(response.data)) == (202, size)
        works_off(url, *tokens)
