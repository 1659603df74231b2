"""Keys that several hold at once, on a real server: among processes, and when the server fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from unittest.mock import ANY

import pytest

from tests.servers import Server, a_valkey, fresh_url
from tests.support.waiting import eventually, now
from weblock import EngineUnavailable
from weblock._core.table import SHARED, Gone, Held
from weblock._runtime.blocking import drive

from .processes import Child
from .seats import Seat, crowded, store_of, turns_in

TTL = 2.0
"""Seconds of a lease whose end is waited for, and of recovery."""

SEAT = """
from tests.engines.seats import Seat, store_of
seats = store_of(url)
seat = Seat(seats.__enter__(), "places", 3)
"""


@pytest.fixture(scope="module")
def url() -> str:
    """A database that nobody else uses."""
    return fresh_url(a_valkey())


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that writes down what it is told before it answers."""
    with Server(appendonly="yes", appendfsync="always") as server:
        yield server


def test_three_processes_hold_a_key_and_a_fourth_waits(url: str) -> None:
    """With ``limit=3`` three processes hold the key, a fourth is let in by the first release, each fence is higher."""
    with ExitStack() as stack:
        children = [stack.enter_context(closing(Child(url, before=SEAT))) for _ in range(4)]
        *holders, fourth = children
        fences = [each.run("seat.ask().fence") for each in holders]
        assert fourth.run("type(seat.ask(room=0)).__name__") == "Busy"
        fourth.begin("seat.take().fence")
        with store_of(url) as store:
            probe = Seat(store, "places", SHARED)
            eventually(lambda: getattr(probe.ask(room=0), "waiters", 0) == 1)
        assert holders[1].run("type(seat.release()).__name__") == "Released"
        fences.append(fourth.outcome())
        assert fences == sorted(set(fences))
        assert holders[0].run("type(seat.beat()).__name__") == "Held"


def test_never_more_than_the_limits_of_all(url: str, tmp_path: Path) -> None:
    """Readers, writers and holders of three places, in several processes, are never more than they may be."""
    limits = [1, 3, 3, SHARED, SHARED]
    with ExitStack() as stack:
        children = [stack.enter_context(closing(Child(url))) for _ in range(3)]
        for child in children:
            child.begin(f"""
                from tests.engines.seats import take_turns
                take_turns(url, {str(tmp_path)!r}, {limits}, 4)
            """)
        for child in children:
            child.outcome()
    turns = turns_in(tmp_path)
    assert len(turns) == 3 * 5 * 4
    assert len({turn.fence for turn in turns}) == len(turns)
    assert crowded(turns) == []
    writers = [turn.fence for turn in turns if turn.limit == 1]
    assert writers == sorted(writers)


def test_readers_outlive_a_server_that_keeps_its_data(server: Server) -> None:
    """All who share a key when the server restarts go on holding it, and a writer waits for all of them."""
    with store_of(server.url(recovery="off")) as store:
        readers = [Seat(store, "a", SHARED) for _ in range(3)]
        fences = [reader.take().fence for reader in readers]
        server.restart(keep_data=True)
        eventually(lambda: drive(store.look("a")), despite=EngineUnavailable)
        assert [reader.beat() for reader in readers] == [Held(fence, ANY) for fence in fences]
        writer = Seat(store, "a", 1)
        for reader in readers:
            assert not isinstance(writer.ask(room=0), Held)
            reader.release()
        assert writer.take().fence > fences[-1]


def test_a_writer_waits_for_readers_that_were_forgotten(server: Server) -> None:
    """After everything was flushed, nobody is let in before the leases of all readers have ended."""
    with store_of(server.url(recovery=TTL)) as store:
        readers = [Seat(store, "a", SHARED, TTL) for _ in range(3)]
        deadlines = []
        for reader in readers:
            sent = now()
            reader.take()
            deadlines.append(sent + TTL)
        server.command("FLUSHALL")
        Seat(store, "a", 1, TTL).take()
        assert now() >= max(deadlines)
        assert [type(reader.beat()) for reader in readers] == [Gone] * 3
