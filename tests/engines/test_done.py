"""What has been done once, when engines and machines fail; and work when its engine hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import Server
from tests.support.waiting import PATIENCE
from weblock import AsyncLocks, EngineUnavailable, LeaseLost, Locks

from .processes import Child
from .test_directories import OTHER_BOOT

DONE = "locks.once('init', lambda: None)"


def marks(folder: Path) -> list[Path]:
    """The files that say that something has been done."""
    return [each for each in folder.iterdir() if each.name.startswith("done-")]


def test_what_is_done_outlives_a_boot(child: Callable[..., Child]) -> None:
    """A machine that was booted anew has forgotten the leases, and not what was done."""
    before = child(before=OTHER_BOOT.format(1)).open(ttl=300)
    assert before.run(DONE)
    before.run("lease = locks.acquire('init')")
    before.kill()
    after = child(before=OTHER_BOOT.format(2)).open()
    after.run("locks.acquire('init', wait=0).release()")
    assert not after.run(DONE)


def test_a_mark_that_was_half_written(folder: Path, locks: Locks) -> None:
    """A process that was killed while it wrote has done nothing; what is damaged is said."""
    locks.once("init", lambda: None)
    (mark,) = marks(folder)
    mark.rename(f"{mark}.0123456789abcdef")
    assert locks.once("init", lambda: None)
    mark.write_bytes(b"")
    with pytest.raises(EngineUnavailable, match="is damaged: remove it"):
        locks.once("init", lambda: None)


def test_a_directory_that_was_deleted_takes_it_along(folder: Path, locks: Locks) -> None:
    """What was done in it is done again in the new one."""
    assert locks.once("init", lambda: None)
    for each in folder.iterdir():
        each.unlink()
    folder.rmdir()
    assert locks.once("init", lambda: None)
    assert not locks.once("init", lambda: None)


def test_any_majority_knows_what_is_done() -> None:
    """A server that was away when it was noted, or that has lost it, changes nothing."""
    servers = [Server() for _ in range(3)]
    urls = [server.url(recovery="off", timeout=2) for server in servers]
    try:
        with Locks.from_url(urls) as locks:
            servers[0].kill()
            assert locks.once("init", lambda: None, wait=PATIENCE)
            servers[0].start()
        with Locks.from_url(urls) as locks:
            servers[1].kill()
            assert not locks.once("init", lambda: None)
            servers[2].kill()
            with pytest.raises(EngineUnavailable):
                locks.once("init", lambda: None)
    finally:
        for server in servers:
            server.close()


def test_a_step_never_fails_open() -> None:
    """Who lets sections run without a lease does not let steps: every process would run them."""
    with (
        Server() as server,
        Locks.from_url(server.url(timeout=0.2), on_unavailable="open") as locks,
    ):
        server.kill()
        with pytest.raises(EngineUnavailable):
            locks.once("init", lambda: pytest.fail("it ran"))


def test_a_step_is_noted_when_the_engine_is_back() -> None:
    """An engine that is away when a step ends is asked again: the step has not run in vain."""
    with Server() as server, Locks.from_url(server.url(recovery="off", timeout=0.2)) as locks:

        def step() -> None:
            server.stop()
            threading.Timer(1, server.cont).start()

        assert locks.once("init", step, wait=PATIENCE, ttl=PATIENCE)
        assert not locks.once("init", lambda: pytest.fail("it ran again"))


async def test_work_is_cancelled_while_the_engine_hangs() -> None:
    """Work whose lease cannot be renewed ends with it, before the engine has answered anybody."""
    with Server() as server:
        url = server.url(recovery="off", timeout=5)
        async with AsyncLocks.from_url(url) as locks:
            began = asyncio.Event()

            async def work() -> None:
                began.set()
                await asyncio.Event().wait()

            running = asyncio.create_task(locks.run("work", work, ttl=2, wait=PATIENCE))
            await began.wait()
            server.stop()
            with pytest.raises(LeaseLost):
                await running
            server.cont()
