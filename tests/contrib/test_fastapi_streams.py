"""FastAPI's own streams: endpoints that yield, as events, as lines or as they are."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse

from tests.support.aio import eventually
from tests.support.waiting import PATIENCE
from weblock import AsyncLease, AsyncLocks
from weblock.contrib.fastapi import install, lock

from .losing import lose
from .wire import Exchange

sse = pytest.importorskip("fastapi.sse", reason="FastAPI 0.135 has them")

Held = Annotated[AsyncLease, Depends(lock("x"))]
RESPONSES = {"events": sse.EventSourceResponse, "raw": StreamingResponse}


class Streams:
    """Endpoints that yield two parts, and wait between them for the test."""

    def __init__(self, locks: AsyncLocks, kind: str, *, hold_back: float) -> None:
        self.app = FastAPI()
        install(self.app, locks, hold_back=hold_back)
        self.go_on = threading.Event()
        self.leases: list[AsyncLease] = []
        self.ended: list[bool] = []
        options = {"response_class": RESPONSES[kind]} if kind in RESPONSES else {}
        self.app.post("/async", **options)(self._async)
        self.app.post("/def", **options)(self._def)

    async def _async(self, lease: Held) -> AsyncIterator[str]:
        self.leases.append(lease)
        try:
            yield "first"
            await eventually(self.go_on.is_set)
            yield "second"
        finally:
            self.ended.append(lease.held)

    def _def(self, lease: Held) -> Iterator[str]:
        self.leases.append(lease)
        try:
            yield "first"
            assert self.go_on.wait(PATIENCE)
            yield "second"
        finally:
            self.ended.append(lease.held)


in_every_kind = pytest.mark.parametrize("kind", ["events", "lines", "raw"])
in_both_worlds = pytest.mark.parametrize("world", ["async", "def"])


@in_every_kind
@in_both_worlds
async def test_a_stream_is_made_inside_the_lock(locks, kind, world):
    """It flows, the lease is held to its end, and then the key is free. Events are never held back."""
    streams = Streams(locks, kind, hold_back=60 if kind == "events" else 0.01)
    exchange = Exchange(path=f"/{world}")
    served = exchange.served_by(streams.app)
    await eventually(lambda: b"first" in exchange.body)
    assert await locks.try_acquire("x") is None
    streams.go_on.set()
    await served
    assert b"second" in exchange.body
    assert exchange.complete
    assert streams.ended == [True]
    assert await locks.try_acquire("x")


@in_every_kind
async def test_a_client_that_leaves_ends_it(locks, kind):
    """What nobody reads any more does not keep the key."""
    streams = Streams(locks, kind, hold_back=0.01)
    exchange = Exchange(path="/async")
    served = exchange.served_by(streams.app)
    await eventually(lambda: b"first" in exchange.body)
    exchange.leaves()
    await served
    assert streams.ended == [True]
    assert await locks.try_acquire("x")


@in_every_kind
@in_both_worlds
async def test_a_lost_lease_breaks_it_off(locks, kind, world):
    """It ends where the lease is lost, and does not look complete; the key is free."""
    streams = Streams(locks, kind, hold_back=0.01)
    exchange = Exchange(path=f"/{world}")
    served = exchange.served_by(streams.app)
    await eventually(lambda: b"first" in exchange.body)
    lose(streams.leases[0])
    if world == "def":
        streams.go_on.set()  # Nobody stops a thread.
    await asyncio.wait({served})
    assert not exchange.complete
    assert b"second" not in exchange.body
    assert await locks.try_acquire("x")


@pytest.mark.parametrize("headers", [{}, {"content-length": "2"}], ids=["endless", "of 2 bytes"])
async def test_what_is_made_is_sent_while_the_rest_is_late(locks, monkeypatch, headers):
    """A slow download begins before it is complete, whether or not it says how long it is."""
    monkeypatch.setattr("weblock.contrib.kit.bodies.STREAMS_AFTER", 0.0)
    app, goes_on = FastAPI(), asyncio.Event()
    install(app, locks)

    async def parts() -> AsyncIterator[bytes]:
        yield b"1"
        await goes_on.wait()
        yield b"2"

    @app.post("/items", dependencies=[Depends(lock("x"))])
    async def download() -> StreamingResponse:
        return StreamingResponse(parts(), headers=headers)

    exchange = Exchange()
    served = exchange.served_by(app)
    await eventually(lambda: len(exchange.sent) == 2)
    assert not exchange.complete
    goes_on.set()
    await served
    assert exchange.complete
