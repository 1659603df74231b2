"""Sections that run without a lease, where their user asked for it by name."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.servers import Server
from tests.support.events import Heard
from tests.support.waiting import PATIENCE
from weblock import (
    AsyncLocks,
    EngineUnavailable,
    Locks,
    LocksOptions,
    LockTimeout,
    Observer,
)
from weblock.events import Answered, FailedOpen
from weblock.stores import file as file_engine

from .keys import record_of

Outage = Callable[[], AbstractContextManager[object]]
URL = str | list[str]


@contextmanager
def a_stuck_file(folder: Path) -> Iterator[None]:
    """Somebody holds the record file of every key that matters here."""
    stuck = os.open(record_of(folder, "stock"), os.O_RDWR)
    fcntl.flock(stuck, fcntl.LOCK_EX)
    yield
    os.close(stuck)


@contextmanager
def hung(server: Server) -> Iterator[None]:
    server.stop()
    yield
    server.cont()


@contextmanager
def killed(*servers: Server) -> Iterator[None]:
    """The servers are gone; afterwards they are there again, and empty."""
    for server in servers:
        server.kill()
    yield
    for server in servers:
        server.start()


@pytest.fixture(params=["file", "redis-killed", "redis-hung", "redlock"])
def engine(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[URL, Outage]]:
    """An engine that works, and how to have it not answer."""
    with ExitStack() as stack:
        if request.param == "file":
            # How long a file must be stuck is the business of test_stuck_files.py.
            monkeypatch.setattr(file_engine, "PATIENCE", 0.2)
            yield f"file://{folder}", lambda: a_stuck_file(folder)
            return
        count = 3 if request.param == "redlock" else 1
        servers = [stack.enter_context(Server()) for _ in range(count)]
        urls = [server.url(recovery="off", timeout=0.3) for server in servers]
        if request.param == "redlock":
            yield urls, lambda: killed(*servers[:2])
        elif request.param == "redis-hung":
            yield urls[0], lambda: hung(servers[0])
        else:
            yield urls[0], lambda: killed(servers[0])


def test_a_section_runs_without_a_lease(
    engine: tuple[URL, Outage], caplog: pytest.LogCaptureFixture
) -> None:
    """While the engine does not answer: the lease says so, and it is logged and counted."""
    heard = Heard()
    url, outage = engine
    with Locks.from_url(url, wait=0.5, on_unavailable="open", observers=[heard.observer]) as locks:
        with locks.hold("stock", wait=PATIENCE) as lease:
            assert lease.held
        with outage(), caplog.at_level(logging.WARNING, "weblock"), locks.hold("stock") as lease:
            assert not lease.held
            assert (lease.key, lease.keys, lease.fence) == ("stock", ("stock",), 0)
            assert (lease.remaining(), lease.owner) == (0, "")
            lease.check()
            lease.extend(5)
            lease.on_lost(lambda: pytest.fail("it was never held"))
            assert "not held" in repr(lease)
        assert len(heard.of(FailedOpen)) == 1
        assert "'stock' (fail-open)" in caplog.text
        with locks.hold("stock", wait=PATIENCE) as lease:
            assert lease.held
            assert lease.fence
        assert len(heard.of(FailedOpen)) == 1


@pytest.mark.parametrize("engine", ["file", "redlock"], indirect=True)
async def test_so_does_one_of_asyncio(engine: tuple[URL, Outage]) -> None:
    """The same of the asyncio API, for several keys too, and where it never waits."""
    heard = Heard()
    url, outage = engine
    async with AsyncLocks.from_url(url, wait=0.5, observers=[heard.observer]) as locks:
        await (await locks.acquire("stock", wait=PATIENCE)).release()
        with outage():
            async with locks.hold("cart", "stock", on_unavailable="open") as lease:
                assert not lease.held
                assert lease.fences == {"cart": 0, "stock": 0}
                lease.check()
                await lease.extend(5)
            lease = await locks.try_acquire("stock", on_unavailable="open")
            assert lease
            assert not lease.held
            with pytest.raises(EngineUnavailable):
                await locks.acquire("stock")
        assert [event.key for event in heard.of(FailedOpen)] == ["cart", "stock", "stock"]


@pytest.mark.parametrize("url", ["memory://", "file://"])
def test_a_busy_key_is_no_outage(url: str, folder: Path) -> None:
    """Who does not get a key that another holds is told so, fail-open or not."""
    heard = Heard()
    place = str(folder) if url == "file://" else uuid.uuid4().hex
    options = LocksOptions(on_unavailable="open", observers=[heard.observer])
    with Locks.from_url(url + place, **options) as locks, locks.hold("stock"):
        with pytest.raises(LockTimeout):
            locks.acquire("stock", wait=0)
        with pytest.raises(LockTimeout), locks.hold("stock", "cart", wait=0, max_waiters=0):
            pytest.fail("the section ran")
        assert len(heard.of(FailedOpen)) == 0


async def test_an_outage_is_waited_out_once() -> None:
    """Of those who come when the engine has been silent for long, none waits for it again."""
    heard = Heard()
    answers = Observer(heard.append, only=[Answered], immediate=True)
    with Server() as server:
        options = LocksOptions(on_unavailable="open", observers=[heard.observer, answers])
        async with AsyncLocks.from_url(server.url(), ttl=1, wait=PATIENCE, **options) as locks:
            with killed(server):
                async with locks.hold("stock"):
                    first = len(heard.of(Answered))
                for _ in range(10):
                    async with locks.hold("stock"):
                        pass
        # One more that waited from the beginning would make ten requests or so; those who come while
        # another has just asked are not asked for at all.
        assert 1 <= len(heard.of(Answered)) - first <= 30
        assert len(heard.of(FailedOpen)) == 11


async def test_a_cancelled_section_is_cancelled() -> None:
    """Who is cancelled while the engine does not answer does not run either."""
    heard = Heard()
    with Server() as server:
        url = server.url(timeout=0.3)
        options = LocksOptions(on_unavailable="open", observers=[heard.observer])
        async with AsyncLocks.from_url(url, wait=20, **options) as locks:
            with killed(server):
                acquiring = asyncio.ensure_future(locks.acquire("stock"))
                await asyncio.wait({acquiring}, timeout=0.2)
                acquiring.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await acquiring
        assert len(heard.of(FailedOpen)) == 0
