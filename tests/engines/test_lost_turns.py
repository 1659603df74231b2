"""Permits are given back after a failure or an interrupt, also while its exception is kept."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.servers import Server, fresh_memcached, fresh_quorum, fresh_url
from tests.servers.postgres import fresh_postgresql
from tests.support.interrupts import Interrupt, Interrupter
from tests.support.renewals import renewed
from tests.support.waiting import PATIENCE, eventually
from weblock import EngineUnavailable, Locks
from weblock.stores.file import records

LINES = 300
"""At how many lines an exception is raised; all of them where they are fewer than twice as many."""

REFUSED = "127.0.0.1:1"
"""Where no server listens."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_a_server_that_was_killed_is_used_again(server: Server) -> None:
    """After an outage every connection of the pool can be used again, also while its errors are kept."""
    url = server.url(recovery="off", max_connections=2, timeout=0.5)
    with Locks.from_url(url, wait=0) as locks:
        lost = locks.acquire("lost", ttl=1)  # The keeper, which renews it, has a pool of its own.
        renewed(locks, lost)
        server.kill()
        kept = failures_of(lambda: locks.acquire("a"), count=10)
        eventually(lambda: lost.remaining() == 0)
        server.start()
        with locks.hold("a") as lease:
            renewed(locks, lease)
    assert len(kept) == 10


@pytest.mark.usefixtures("no_collector")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:.*was never awaited:RuntimeWarning")
@pytest.mark.parametrize("engine", ["file", "redis", "quorum", "postgresql", "memcached"])
def test_exceptions_of_signal_handlers_use_none_up(engine: str, tmp_path: Path) -> None:
    """Such an exception at any line costs no permit, also if the application keeps the exception."""
    urls = {
        "file": lambda: f"file://{tmp_path}",
        "redis": lambda: fresh_url(max_connections=2),
        "quorum": lambda: fresh_quorum(3, max_connections=2),
        "postgresql": lambda: f"{fresh_postgresql()}&max_connections=2",
        "memcached": lambda: f"{fresh_memcached()}&max_connections=2",
    }
    kept: list[Interrupt] = []

    def section(key: str) -> None:
        locks.acquire(key, wait=PATIENCE).release()

    with Locks.from_url(urls[engine]()) as locks:
        section("warm")
        whole = Interrupter(None)
        whole.run(lambda: section("key"))
        numbers = range(1, whole.lines + 1, max(1, whole.lines // LINES))
        for number in numbers:
            Interrupter(number, kept=kept.append).run(partial(section, f"key {number}"))
        for _ in range(3):
            section("key")
    assert len(kept) > len(numbers) / 2


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    "url",
    [
        f"redis://{REFUSED}?max_connections=2&timeout=0.2",
        [f"redis://127.0.0.1:{port}?max_connections=2&timeout=0.2" for port in (1, 2, 3)],
        f"postgresql://u@{REFUSED}/db?max_connections=2&timeout=0.2",
    ],
)
def test_refused_connections_use_none_up(url: str | list[str]) -> None:
    """However often the server has refused, a caller learns that it refuses."""
    with Locks.from_url(url, wait=0) as locks:
        kept = failures_of(lambda: locks.acquire("a"), count=5)
    assert not [str(error) for error in kept if "in use" in str(error)]


def failures_of(work: Callable[[], object], *, count: int) -> list[EngineUnavailable]:
    """The errors of several calls, kept as an application's reports keep them, with their tracebacks."""
    kept: list[EngineUnavailable] = []
    for _ in range(count):
        with pytest.raises(EngineUnavailable) as caught:
            work()
        kept.append(caught.value)
    return kept


@pytest.mark.usefixtures("no_collector")
def test_a_record_file_that_cannot_be_unlocked_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other callers and processes get in, although the error that says so is kept."""
    kept, flock = [], records.fcntl.flock

    def fails_once(fd: int, operation: int) -> None:
        if operation == records.fcntl.LOCK_UN and not kept:
            raise OSError(os.EX_IOERR, "the disk is gone")
        flock(fd, operation)

    with Locks.from_url(f"file://{tmp_path}", wait=0) as locks:
        locks.acquire("a").release()
        monkeypatch.setattr(records.fcntl, "flock", fails_once)
        with pytest.raises(EngineUnavailable) as caught:
            locks.acquire("a")
        kept.append(caught.value)
        locks.acquire("a", wait=None).release()
