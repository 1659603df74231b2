"""Commit, release, last byte: in this order, however the parts are declared.

FastAPI leaves ``yield`` dependencies in the reverse order of their declaration: those of
``scope="function"`` before it sends the response, all others after.
"""

import asyncio
import itertools
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException

from tests.support.aio import eventually
from weblock.contrib.fastapi import install, lock

from .shop import BOUND, Shop
from .wire import Exchange

REQUESTS = 8

SCOPES = ("request", "function")
ORDERS = ("lock first", "session first")
WAYS = [
    dict(zip(("session", "scope", "order", "endpoint"), way, strict=True))
    for way in itertools.product(("sync", "async"), SCOPES, ORDERS, ("def", "async def"))
]
in_every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: ", ".join(way.values()))


def application(
    shop: Shop, one_at_a_time: Any, *, session: str, scope: str, order: str, endpoint: str = "def"
) -> FastAPI:
    app = FastAPI()
    sessions = shop.sync_session if session == "sync" else shop.async_session
    session_of_request = Annotated[Any, Depends(sessions, scope=scope)]
    lease = Annotated[Any, one_at_a_time]

    def create(session: Any) -> str:
        if not shop.has_room():
            raise HTTPException(422, "there are enough")
        session.added += 1
        return "created"

    def lock_first(lease: lease, session: session_of_request) -> str:
        return create(session)

    def session_first(session: session_of_request, lease: lease) -> str:
        return create(session)

    async def lock_first_async(lease: lease, session: session_of_request) -> str:
        return create(session)

    async def session_first_async(session: session_of_request, lease: lease) -> str:
        return create(session)

    endpoints = {
        ("lock first", "def"): lock_first,
        ("session first", "def"): session_first,
        ("lock first", "async def"): lock_first_async,
        ("session first", "async def"): session_first_async,
    }
    app.post("/items", status_code=201)(endpoints[order, endpoint])
    return app


async def create_items(app: FastAPI) -> list[int]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop", timeout=60) as client:
        answers = await asyncio.gather(*(client.post("/items") for _ in range(REQUESTS)))
    return sorted(answer.status_code for answer in answers)


async def create_for_slow_client(app: FastAPI, shop: Shop) -> Exchange:
    """One item, for a client that reads nothing until the lock is released, or never will be."""
    exchange = Exchange(events=shop.events)
    exchange.reading.clear()
    served = exchange.served_by(app)
    try:
        await eventually(lambda: "release" in shop.events, within=1)
    except TimeoutError:
        pass
    exchange.reading.set()
    await served
    return exchange


@in_every_way
async def test_the_bound_is_kept(shop, locks, way):
    """Of many concurrent requests as many succeed as there is room for, in every order."""
    one = Depends(lock("create_item"))
    app = application(shop, one, **way)
    install(app, locks)
    assert await create_items(app) == [201] * BOUND + [422] * (REQUESTS - BOUND)
    assert shop.items == BOUND


@in_every_way
async def test_commit_then_release_then_the_last_byte(shop, locks, way):
    """The lock is released when the work is committed, and before a slow client has its answer."""
    one = Depends(lock("create_item"))
    app = application(shop, one, **way)
    install(app, locks, hold_back=60)
    exchange = await create_for_slow_client(app, shop)
    assert exchange.status == 201
    assert shop.events == ["commit", "release", "last byte"]


@pytest.mark.parametrize("session", ["sync", "async"])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("order", ORDERS)
async def test_a_commit_that_fails_is_not_reported_as_done(shop, locks, session, scope, order):
    """A client is told 500, never 201, if the commit after the handler fails; the lock is free."""
    one = Depends(lock("create_item"))
    app = application(shop, one, session=session, scope=scope, order=order)
    install(app, locks)
    shop.commits_fail = True
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        assert (await client.post("/items")).status_code == 500
    assert shop.events == ["release"]
