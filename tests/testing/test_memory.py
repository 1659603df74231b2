"""Locks in memory for the tests of an application, whose engine need not run."""

from typing import Annotated

import pytest
from fastapi import Depends, FastAPI

from tests.support.http import client_of
from weblock import AsyncLease, AsyncLocks
from weblock.contrib.fastapi import install, lock
from weblock.testing import memory_locks

NOWHERE = "redis://127.0.0.1:1"

app = FastAPI()
app_locks = install(app, NOWHERE, require_scope="cluster", wait=0)


@app.post("/items")
async def create(lease: Annotated[AsyncLease, Depends(lock("items"))]) -> int:
    return lease.fence or 0


@pytest.mark.usefixtures("weblock_memory")
async def test_the_fixture_serves_an_application() -> None:
    """An application of any framework locks in memory, on an engine for each URL."""
    others = AsyncLocks.from_url(NOWHERE, require_scope="cluster")
    elsewhere = AsyncLocks.from_url("redis://127.0.0.1:2")
    async with others, elsewhere, client_of(app, raises=True) as client:
        assert (await client.post("/items")).status_code == 200
        async with others.hold("items"):
            assert (await client.post("/items")).status_code == 409
            assert await elsewhere.try_acquire("items")


async def test_an_application_has_its_engine_again() -> None:
    """After the block, locks use the engine that their URL names."""
    async with client_of(app, raises=True) as client:
        with memory_locks():
            assert (await client.post("/items")).status_code == 200
            assert (app_locks.engine, app_locks.scope) == ("memory://", "cluster")
        assert (await client.post("/items")).json()["code"] == "engine_unavailable"
    assert app_locks.engine.startswith(NOWHERE)
