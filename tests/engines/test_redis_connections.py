"""Connections: how many there are, what becomes of them, and what must not happen when one fails."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.servers import Server, fresh_url, shared
from tests.support.aio import until_waited_for
from tests.support.waiting import PATIENCE, eventually, waiters
from weblock import AsyncLocks, EngineUnavailable, Locks
from weblock._adapting import key_space_of
from weblock._core.ports import Pulse
from weblock.stores.redis import blocking
from weblock.stores.redis.aio import AsyncioLink
from weblock.stores.redis.calls import packed
from weblock.stores.redis.internals import take_writer
from weblock.stores.redis.settings import Address
from weblock.stores.redis.store import RedisStore
from weblock.stores.redis.topology import Nodes
from weblock.stores.transport import pool


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of the test's own, to be treated badly."""
    with Server() as server:
        yield server


def connections(server: Server, name: str) -> int:
    with server.client() as client:
        return sum(each["name"] == name for each in client.client_list())


async def test_five_hundred_tasks_wait_on_three_connections(server: Server) -> None:
    """Tasks that wait hold no connection, and all of them are served in their turn."""
    url = server.url(recovery="off", client_name="crowd")
    served: list[int] = []
    with Locks.from_url(server.url(recovery="off")) as locks:
        lease = locks.acquire("a")
        async with AsyncLocks.from_url(url, wait=PATIENCE) as crowd:

            async def one(number: int) -> None:
                async with crowd.hold("a"):
                    served.append(number)

            tasks = [asyncio.ensure_future(one(number)) for number in range(500)]
            await asyncio.to_thread(eventually, lambda: waiters(locks, "a") == 500)
            # One of the loop's, one of the keeper's. One that was replaced may not be closed yet.
            await asyncio.to_thread(eventually, lambda: connections(server, "crowd") <= 3)
            lease.release()
            await asyncio.gather(*tasks)
    assert served == list(range(500))


def test_a_hundred_threads_wait_on_a_pool_of_four(server: Server) -> None:
    """Threads that wait hold no connection, so that the holder can go on with a full house."""
    url = server.url(recovery="off", client_name="crowd", max_connections=4)
    with Locks.from_url(url, wait=PATIENCE) as locks, ThreadPoolExecutor(100) as pool:
        lease = locks.acquire("a")

        def one() -> int:
            with locks.hold("a") as mine:
                return mine.fence

        calls = [pool.submit(one) for _ in range(100)]
        eventually(lambda: waiters(locks, "a") == 100)
        lease.extend(1)
        # Four of the pool, one that hears the notifications, and the keeper's.
        eventually(lambda: connections(server, "crowd") <= 6)
        lease.release()
        assert len({call.result() for call in calls}) == 100


@pytest.mark.parametrize("server_has_moved", [False, True])
def test_connections_of_a_rush_do_not_stay(
    server: Server, server_has_moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls close what a rush has left open, one each, and a move to another server closes all of it."""
    monkeypatch.setattr(blocking, "SPARE", 3600 if server_has_moved else 0)
    moved = threading.Event()
    monkeypatch.setattr(Nodes, "serves", lambda *_: not moved.is_set())
    url = server.url(recovery="off", client_name="crowd")
    with Locks.from_url(url) as locks, ThreadPoolExecutor(15) as pool:
        locks.acquire("first").release()
        with server.client() as client:
            client.client_pause(int(PATIENCE * 1000), all=False)  # Writes wait.
            calls = [pool.submit(locks.acquire, str(number)) for number in range(15)]
            eventually(lambda: connections(server, "crowd") >= 15)
            client.client_unpause()
        for call in calls:
            call.result().release()
        if server_has_moved:
            engine: Any = key_space_of(locks).engine
            moved.set()
            engine._connections._move()
        else:
            for _ in range(20):
                locks.acquire("one").release()
        # One of the pool, and the keeper's.
        eventually(lambda: connections(server, "crowd") <= 2)


def test_heartbeats_of_many_waiters_go_in_one_command(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty who wait cost the server about as many commands as one who waits."""
    heartbeats = count_heartbeats(monkeypatch)
    with Locks.from_url(server.url(recovery="off"), wait=PATIENCE) as locks:
        lease = locks.acquire("a")
        with ThreadPoolExecutor(50) as pool:
            calls = [pool.submit(lambda: locks.acquire("a").release()) for _ in range(50)]
            eventually(lambda: waiters(locks, "a") == 50)
            with server.client() as client:
                commands, beaten = scripts_run(client), sum(heartbeats)
                eventually(lambda: sum(heartbeats) >= beaten + 2 * 50)
                commands = scripts_run(client) - commands
                beaten = sum(heartbeats) - beaten
            lease.release()
            for call in calls:
                call.result()
    assert 0 < commands < beaten / 2


def count_heartbeats(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many heartbeats go with each request, from now on."""
    counts: list[int] = []
    refresh = RedisStore.refresh

    async def counted(store: RedisStore, pulses: Sequence[Pulse]) -> Any:
        counts.append(len(pulses))
        return await refresh(store, pulses)

    monkeypatch.setattr(RedisStore, "refresh", counted)
    return counts


def scripts_run(client: redis.Redis) -> int:
    return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


async def test_a_connection_that_was_closed_is_not_used_again(server: Server) -> None:
    """Whatever closed the connections, the next to lock is served, without having to retry."""
    url = server.url(recovery="off")
    with Locks.from_url(url, wait=0) as locks:
        async with AsyncLocks.from_url(url, wait=0) as others:
            for _ in range(5):
                locks.acquire("a").release()
                await (await others.acquire("a")).release()
                server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                await asyncio.sleep(0)  # The loop hears of it.
                await asyncio.sleep(0.01)


async def test_a_hand_over_takes_as_many_commands_whoever_waits(server: Server) -> None:
    """The server runs as many commands to pass a key on with 1,000 waiters behind it as with 8."""

    def commands() -> int:
        return sum(each["calls"] for each in client.info("commandstats").values())

    url, least = server.url(recovery="off"), []
    async with AsyncLocks.from_url(url, wait=None, max_waiters=1000) as locks:
        client = server.client()
        for waiting in (8, 1000):
            lease, taken = await locks.acquire("a"), []
            tasks = {asyncio.create_task(locks.acquire("a")) for _ in range(waiting)}
            await until_waited_for(locks, "a", by=waiting)
            for _ in range(6):
                before = commands()
                await lease.release()
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                lease = done.pop().result()
                taken.append(commands() - before)
            least.append(min(taken))  # Of those in which no heartbeat came.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await lease.release()
        client.close()
    assert least[0] == least[1] > 0


def test_a_release_on_a_connection_that_was_closed_is_made_up_for(server: Server) -> None:
    """Whether it arrived is not known, so nothing says that the lease was lost, and the key becomes free."""
    url = server.url(recovery="off")
    with Locks.from_url(url, wait=0) as locks:
        for _ in range(5):
            lease = locks.acquire("a")
            server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            lease.release()
            eventually(lambda: locks.inspect("a") is None, despite=EngineUnavailable)


async def test_replies_reach_those_who_asked_whoever_was_cancelled() -> None:
    """On a shared connection, cancelled requests take no reply that is another's."""
    dice = random.Random(7)
    async with AsyncLocks.from_url(fresh_url(), wait=PATIENCE) as locks:

        async def one(number: int) -> None:
            key = f"key {number % 20}"
            async with locks.hold(key) as lease:
                assert lease.key == key
                await asyncio.sleep(0)
                lease.check()

        for _ in range(10):
            tasks = [asyncio.ensure_future(one(number)) for number in range(100)]
            for task in dice.sample(tasks, 50):
                asyncio.get_running_loop().call_later(dice.random() / 50, task.cancel)
            results = await asyncio.gather(*tasks, return_exceptions=True)
            wrong = [each for each in results if isinstance(each, Exception)]
            assert not wrong
        with Locks.from_url(locks_url(locks)) as probe:
            await asyncio.to_thread(eventually, lambda: not probe.list())


def test_threads_learn_that_a_server_hangs(server: Server) -> None:
    """A thread that waits for a connection is told that the others wait for the server, not for more room."""
    url = server.url(recovery="off", timeout=0.5, max_connections=2)
    with Locks.from_url(url, wait=0) as locks, ThreadPoolExecutor(12) as pool:
        locks.acquire("a", wait=PATIENCE).release()
        server.stop()
        try:
            errors = [pool.submit(reason_of_refusal, locks, f"key {n}") for n in range(12)]
            reasons = {each.result(PATIENCE) for each in errors}
        finally:
            server.cont()
    assert [each for each in reasons if "did not answer in time" not in each] == []


def reason_of_refusal(locks: Locks, key: str) -> str:
    with pytest.raises(EngineUnavailable) as caught:
        locks.acquire(key)
    return caught.value.reason


def test_signals_do_not_extend_a_timeout(server: Server) -> None:
    """A silent server is waited for once, however often a signal comes meanwhile."""
    signals: list[int] = []
    over = threading.Event()
    former = signal.signal(signal.SIGUSR1, lambda number, _frame: signals.append(number))

    def interrupt() -> None:
        while len(signals) < 100 and not over.wait(0.05):
            os.kill(os.getpid(), signal.SIGUSR1)

    try:
        with Locks.from_url(server.url(recovery="off", timeout=0.3), wait=0) as locks:
            locks.acquire("a").release()
            server.stop()
            interrupting = threading.Thread(target=interrupt)
            interrupting.start()
            try:
                assert "did not answer in time" in reason_of_refusal(locks, "b")
                assert len(signals) < 100
            finally:
                over.set()
                interrupting.join()
                server.cont()
    finally:
        signal.signal(signal.SIGUSR1, former)


def test_a_pool_that_is_too_small_is_told_so(server: Server) -> None:
    """While the server answers, a thread that gets no connection is told to raise ``max_connections``."""
    with Locks.from_url(server.url(recovery="off", max_connections=1), wait=0) as locks:
        locks.acquire("a", wait=PATIENCE).release()
        links = locks._locker.store._wire.links  # type: ignore[attr-defined]
        links._patience = 0.01
        links.free.get()
        try:
            # Just before the thread gives up.
            links._silence.answered_at = time.monotonic() + PATIENCE
            assert (
                reason_of_refusal(locks, "b")
                == "all 1 connections are in use: raise max_connections"
            )
        finally:
            links.free.put(None)
        locks.acquire("b").release()


def test_a_keeper_without_a_connection_goes_before_all_callers(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is lent the next connection that comes back, and the callers have it again afterwards."""
    monkeypatch.setattr(pool, "LOAN", PATIENCE)
    with Locks.from_url(server.url(recovery="off"), wait=PATIENCE) as locks:
        locks.acquire("a").release()
        links, address = locks._locker.store._wire.links, Address(("127.0.0.1"), server.port)  # type: ignore[attr-defined]
        (link,) = links._idle.pop(address)
        with ThreadPoolExecutor(1) as threads:
            loan = threads.submit(links.lend, address)
            eventually(lambda: links._wanted[address])
            links.give_back(link)
            assert loan.result() is link
        assert not links._idle.get(address)
        links.give_back(link)
        assert links._idle[address] == [link]


def free(locks: Locks, key: str) -> bool:
    lease = locks.try_acquire(key)
    if lease:
        lease.release()
    return lease is not None


def locks_url(locks: AsyncLocks) -> str:
    prefix = locks._engine.settings.prefix  # type: ignore[attr-defined]
    return shared().url(prefix=prefix, recovery="off")


def test_everything_that_is_left_expires(server: Server) -> None:
    """A day after its last use nothing is left of a lock: every key has its time, but the epoch."""
    with Locks.from_url(server.url(recovery="off"), wait=PATIENCE) as locks:
        locks.acquire("free").release()
        lease = locks.acquire("held")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda: locks.acquire("held").release())
            eventually(lambda: waiters(locks, "held") == 1)
            with server.client() as client:
                times = {name: client.ttl(name) for name in client.scan_iter("*")}
            lease.release()
            waiting.result()
    for name, left in times.items():
        assert name.endswith(":epoch") or 0 < left <= 2 * 86400, name


async def test_a_silent_server_fails_all(server: Server) -> None:
    """Where nothing comes any more, whoever waits on the connection need not wait till he is due."""
    link = await _link(server)
    blocked = asyncio.ensure_future(link.exchange([packed("BLPOP", "list", "0")]))
    behind = asyncio.ensure_future(link.exchange([packed("ECHO", "behind")]))
    with pytest.raises(redis.TimeoutError):
        await blocked
    with pytest.raises(redis.TimeoutError):
        await behind
    assert link.failure


async def test_the_requests_of_others_do_not_count_as_silence(server: Server) -> None:
    """The server has its time for each request, however many were sent before it."""
    link = await _link(server, timeout=3.0)
    slow = [packed("BLPOP", "nothing", "0.4")] * 10
    assert await link.exchange([*slow, packed("ECHO", "last")]) == [*[None] * 10, b"last"]
    link.discard()


async def test_a_thousand_callers_at_once_leave_the_server_time_for_others(server: Server) -> None:
    """Few requests are sent ahead of their replies, and those of cancelled callers are not sent at all."""
    link = await _link(server, timeout=PATIENCE)
    written = _written(link)
    first = link.ask(packed("BLPOP", "list", "0"))
    callers = [asyncio.ensure_future(link.ask(packed("ECHO", n))) for n in range(1000)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 0 < sum(each.count(b"ECHO") for each in written) < 100
    for caller in callers[100:]:
        caller.cancel()
    with server.client() as client:
        client.rpush("list", "go on")
    await first
    assert await asyncio.gather(*callers[:100]) == [b"%d" % n for n in range(100)]
    assert sum(each.count(b"ECHO") for each in written) == 100
    link.discard()


async def test_a_caller_that_is_alone_writes_at_once(server: Server) -> None:
    """Nothing is put off that would not share its write with another command."""
    link = await _link(server)
    written = _written(link)
    for number in range(3):
        reply = link.ask(packed("ECHO", number))
        assert len(written) == number + 1
        assert await reply == str(number).encode()
    link.discard()


def test_a_connection_does_not_slow_its_event_loop_down(server: Server) -> None:
    """CPython reads attributes from a dict of the object, once there is one, in several times as long."""

    async def lock() -> list[object]:
        async with AsyncLocks.from_url(server.url(recovery="off")) as locks, locks.hold("a"):
            return gc.get_referents(asyncio.get_running_loop())

    found = asyncio.run(lock())
    assert not any(type(each) is dict and "_ready" in each for each in found)


async def test_callers_of_one_turn_share_their_writes(server: Server) -> None:
    """What many ask in one turn goes out in few writes, and each gets its own reply."""
    link = await _link(server)
    written = _written(link)

    async def one(number: int) -> None:
        for _ in range(10):
            assert await link.ask(packed("ECHO", number)) == str(number).encode()

    await asyncio.gather(*map(one, range(32)))
    assert len(written) < 320
    link.discard()


def _written(link: AsyncioLink) -> list[bytes]:
    written: list[bytes] = []
    write = link._transport.write

    class Noting:
        def __getattr__(self, name: str) -> Any:
            return getattr(link_transport, name)

        def write(self, data: bytes) -> None:
            written.append(data)
            write(data)

    link_transport, link._transport = link._transport, Noting()
    return written


async def _link(server: Server, timeout: float = 1.0) -> AsyncioLink:
    connection = redis.asyncio.Connection(port=server.port, protocol=3)
    await connection.connect()
    return AsyncioLink(
        Address("127.0.0.1", server.port),
        take_writer(connection),
        timeout=timeout,
        on_end=lambda _link: None,
    )


async def test_closed_locks_open_no_connection(server: Server) -> None:
    """A request that is repeated after its locks were closed is refused, and connects no more."""
    locks = AsyncLocks.from_url(server.url(recovery="off", client_name="closed"))
    lease = await locks.acquire("a")
    owner, store = lease._holdings[0].owner, locks._locker.store
    await lease.release()
    await locks.close()
    with pytest.raises(EngineUnavailable, match="closed"):
        await store.release("a", owner)
    eventually(lambda: not connections(server, "closed"))
