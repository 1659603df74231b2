"""Turns at a pool's connections come back when connecting fails, whatever remembers the failure."""

from __future__ import annotations

import gc
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import PATIENCE
from weblock import EngineUnavailable, Locks
from weblock._platform.turns import Empty, Turn, Turns
from weblock._runtime.crowd import Crowd
from weblock.stores.file import records
from weblock.stores.redis.blocking import BlockingLinks
from weblock.stores.redis.settings import Address

REFUSED = "127.0.0.1:1"
"""Where no server listens."""


class Frame:
    """A traceback's frame, as far as the collector sees it: in a cycle, with a turn in it."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.myself = self


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Nothing is collected while the test runs."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("count", [1, 2])
def test_turns_that_are_all_garbage_come_back(count: int) -> None:
    """A collection that finds all turns in cycles gives every one of them back."""
    turns = Turns(count)
    for _ in range(count):
        Frame(turns.take(block=False))
    gc.collect()
    kept = [turns.take(block=False) for _ in range(count)]
    assert len(kept) == count
    with pytest.raises(Empty):
        turns.take(block=False)


def test_turns_whose_pool_is_garbage_go_with_it() -> None:
    """Turns do not outlive what they are turns at."""
    turns = Turns(1, lambda: pytest.fail("there is nothing to come back to"))
    Frame(turns.take(block=False))
    del turns
    gc.collect()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    "url",
    [
        f"redis://{REFUSED}?max_connections=2&timeout=0.2",
        f"postgresql://u@{REFUSED}/db?max_connections=2&timeout=0.2",
    ],
)
def test_refused_connections_use_none_up(url: str) -> None:
    """However often the server has refused, a caller learns that it refuses.

    The errors are kept, as an application's reports of them are, and their tracebacks with them.
    """
    kept = []
    with Locks.from_url(url, wait=0) as locks:
        for _ in range(5):
            with pytest.raises(EngineUnavailable) as caught:
                locks.acquire("a")
            kept.append(caught.value)
    assert not [str(error) for error in kept if "in use" in str(error)]


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("takes_turns", [False, True])
def test_failures_to_connect_leave_the_room_as_it_was(takes_turns: bool) -> None:
    """Neither the pool of one server nor that of a quorum's server loses room to failures."""
    failures: list[OSError] = []
    links = BlockingLinks(Refusing, None, room=1, patience=0.0, takes_turns=takes_turns)  # type: ignore[arg-type]

    async def one() -> None:
        try:
            await links.take(Address("server", 1), None)  # type: ignore[arg-type]
        except OSError as error:
            failures.append(error)

    for _ in range(3):
        run(one())
    assert [type(each) for each in failures] == [ConnectionRefusedError] * 3


class Refusing:
    """A connection that is always refused."""

    socket_timeout = socket_connect_timeout = PATIENCE

    def __init__(self, _address: Address) -> None:
        pass

    def connect(self) -> None:
        """Fails."""
        raise ConnectionRefusedError


def run(work: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine that may wait for a socket."""
    Crowd([work]).run(lambda: False)


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
