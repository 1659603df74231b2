"""What is published to waiters: garbage is dropped, and what is forged does little."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers import Server
from tests.support.waiting import PATIENCE, eventually
from weblock import AsyncLocks, Locks
from weblock._core.ports import CheckAgain, Granted, Message, Switchboard
from weblock.stores.redis import link
from weblock.stores.transport.listener import from_notification

NOW = 1_790_000_000_000_000
OWNER = "a" * 32

GARBAGE = [
    b"",
    b" ",
    b"\xff\xfe",
    b"owner 1",
    b"owner 1 2 3",
    b"owner -1 2",
    b"owner 1_0 2",
    b"owner 1 1e9",
    b"owner " + b"9" * 400 + b" 1",
    b"owner 1 " + b"9" * 400,
    b"owner 1 " + b"9" * 5000,
    "owner \u0661 \u0662".encode(),
    b"o" * 1_000_000,
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


class Subscription:
    """What a waiter was told."""

    def __init__(self) -> None:
        self.told: list[Message] = []

    def put(self, message: Message) -> None:
        self.told.append(message)

    async def heard(self, timeout: float | None) -> Message | None:
        return None


@pytest.mark.parametrize("payload", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_dropped_with_a_line(payload: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a stranger publishes reaches nobody, and is noted once."""
    board, subscription = Switchboard(), Subscription()
    board.mailboxes["owner"] = subscription
    with caplog.at_level(logging.DEBUG, "weblock"):
        link.Subscription("", board, bool).pass_on([b"message", b"channel", payload])
    assert subscription.told == []
    assert [each.thread for each in caplog.records].count(threading.get_ident()) == 1


words = st.text("0123456789abcdefg _-+.", max_size=60).map(str.encode) | st.binary(max_size=60)


@given(st.lists(words, max_size=5).map(b" ".join) | words)
def test_no_message_is_an_error(payload: bytes) -> None:
    """A message is a notification with numbers that are plausible, or it is none."""
    match from_notification(payload.decode(errors="replace")):
        case None | (str(), CheckAgain()):
            pass
        case (str() as owner, Granted(fence, until)):
            assert payload.startswith(owner.encode())
            assert 0 <= fence <= until * 1_000_000 + 1_000_001
        case other:
            pytest.fail(f"{other!r}")


def test_a_fence_from_the_future_is_asked_about() -> None:
    """A forger does not choose a fence that outlives its window; the waiter asks for the true one."""
    until = NOW + 1_500_000
    assert from_notification(f"{OWNER} {NOW + 900_000} {until}") == (
        OWNER,
        Granted(NOW + 900_000, until / 1_000_000),
    )
    assert from_notification(f"{OWNER} {until + 5_000_000} {until}") == (OWNER, CheckAgain())


def listeners(server: Server, name: str) -> list[str]:
    """The connections of clients of that name that are subscribed to something."""
    with server.client() as client:
        clients = [each for each in client.client_list() if each["name"] == name]
    return [each["id"] for each in clients if int(each["sub"]) > 0]


def locks_of(server: Server, name: str) -> Locks:
    return Locks.from_url(server.url(recovery="off", client_name=name), wait=PATIENCE)


def flood(server: Server) -> None:
    """Publish garbage on every channel that somebody listens on."""
    with server.client() as client:
        for channel in client.pubsub_channels("*"):
            for payload in GARBAGE:
                client.publish(channel, payload)


def forge(server: Server, key: str, fence: int, until: int) -> None:
    """Publish what only the server should: that the first waiter of ``key`` has the lease."""
    with server.client() as client:
        (lock,) = [name for name in client.keys("*:lock:*") if name.endswith(key)]
        place = next(each for each in client.hkeys(lock) if each.startswith("place:"))
        owner = place.removeprefix("place:")
        for channel in client.pubsub_channels("*"):
            client.publish(channel, f"{owner} {fence} {until}")


def waiting(server: Server, key: str) -> bool:
    with Locks.from_url(server.url(recovery="off")) as probe:
        info = probe.inspect(key)
        return bool(info and info.waiters)


def server_time(server: Server) -> int:
    """The server's time, in microseconds."""
    with server.client() as client:
        seconds, micros = client.time()
    return int(seconds) * 1_000_000 + int(micros)


def test_threads_hear_on_the_same_connection_after_garbage(server: Server) -> None:
    """A receiver that is sent garbage neither reconnects nor misses what comes after it."""
    with locks_of(server, "threads") as locks, ThreadPoolExecutor() as pool:
        lease = locks.acquire("threads")
        waiter = pool.submit(lambda: locks.acquire("threads"))
        eventually(lambda: waiting(server, "threads") and listeners(server, "threads"))
        before = listeners(server, "threads")
        flood(server)
        lease.release()
        waiter.result().release()
        assert listeners(server, "threads") == before


async def test_tasks_hear_on_the_same_connection_after_garbage(server: Server) -> None:
    """A loop whose connection is sent garbage keeps it."""
    url = server.url(recovery="off", client_name="tasks")
    async with AsyncLocks.from_url(url, wait=PATIENCE) as locks:
        lease = await locks.acquire("tasks")
        waiter = asyncio.create_task(locks.acquire("tasks"))
        await asyncio.to_thread(
            eventually, lambda: waiting(server, "tasks") and listeners(server, "tasks")
        )
        before = await asyncio.to_thread(listeners, server, "tasks")
        await asyncio.to_thread(flood, server)
        await lease.release()
        await (await waiter).release()
        assert await asyncio.to_thread(listeners, server, "tasks") == before


@pytest.mark.parametrize("ahead", [3600, -3600])
def test_an_end_that_cannot_be_is_asked_about(server: Server, ahead: int) -> None:
    """A forged notification of a lease for an hour, or of one that has ended, lets nobody in."""
    key = f"forged-{ahead}"
    with locks_of(server, key) as locks, ThreadPoolExecutor() as pool:
        lease = locks.acquire(key)
        waiter = pool.submit(lambda: locks.acquire(key))
        eventually(lambda: waiting(server, key) and listeners(server, key))
        now = server_time(server)
        forge(server, key, now, now + ahead * 1_000_000)
        lease.release()
        assert waiter.result().fence > lease.fence
        assert waiter.result().fence != now
        waiter.result().release()


def test_a_forged_turn_is_found_out_by_its_first_heartbeat(server: Server) -> None:
    """What cannot be told from the truth lasts until the keeper asks: then the lease is lost."""
    with locks_of(server, "forged") as locks, ThreadPoolExecutor() as pool:
        lease = locks.acquire("forged")
        waiter = pool.submit(lambda: locks.acquire("forged"))
        eventually(lambda: waiting(server, "forged") and listeners(server, "forged"))

        def believed() -> bool:  # Not where the waiter reads it after the end that it names.
            now = server_time(server)
            forge(server, "forged", now, now + 1_000_000)
            return waiter.done()

        eventually(believed)
        forged = waiter.result()
        eventually(lambda: not forged.held)
        assert lease.held
        lease.release()
