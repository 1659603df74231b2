"""Servers of which one hangs, dies or leaves, and Sentinels that are silent: what others notice of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from tests.servers import Cluster, SentinelDeployment, Server
from tests.servers.cluster import SLOTS
from tests.servers.proxy import Proxy
from tests.support.renewals import renew_often, renewed
from tests.support.waiting import PATIENCE, eventually
from weblock import AsyncLocks, EngineUnavailable, Locks, LockTimeout
from weblock.stores.redis import asking
from weblock.stores.redis.calls import Layout
from weblock.stores.redis.settings import Address

TTL = 3.0
FOR_EVER = 60.0
"""Seconds, longer than any test waits."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster whose replicas do not take over, and whose masters go on without one of them."""
    with Cluster(node_timeout=30) as cluster:
        for node in cluster.nodes:
            node.command("CONFIG", "SET", "cluster-require-full-coverage", "no")
            node.command("CONFIG", "SET", "cluster-replica-no-failover", "yes")
            node.command("CONFIG", "SET", "cluster-allow-replica-migration", "no")
        yield cluster


def keys_of(cluster: Cluster, master: Server, count: int) -> list[str]:
    """Keys that live on one of the masters that the cluster began with."""
    layout = Layout("weblock", 128)
    slots = (key_slot(layout.of_key(f"default:key {n}")[1][0].encode()) for n in range(10_000))
    here = (n for n, slot in enumerate(slots) if began_with(cluster, slot) is master)
    return [f"key {number}" for number in islice(here, count)]


def began_with(cluster: Cluster, slot: int) -> Server:
    """The master that had a slot when the cluster was made."""
    return next(cluster.nodes[index] for index in range(3) if slot < SLOTS * (index + 1) // 3)


def test_a_hung_master_loses_no_lease_elsewhere(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases of the other masters are renewed again and again while one of them stands still."""
    renew_often(monkeypatch)
    hung, *others = cluster.nodes[:3]
    # So that nobody waits for long for the one, nor is refused where another is slow.
    url = cluster.url(recovery="off", timeout=1, connect_timeout=1)
    with Locks.from_url(url, ttl=PATIENCE, wait=PATIENCE) as locks:
        unanswered = [locks.acquire(key) for key in keys_of(cluster, hung, 5)]
        leases = [locks.acquire(key) for each in others for key in keys_of(cluster, each, 5)]
        hung.stop()
        try:
            for _ in range(5):
                renewed(locks, *leases)
            assert all(lease.held for lease in unanswered)  # They were to be renewed all the while.
            for each in others:
                locks.acquire(f"{keys_of(cluster, each, 6)[5]}").release()
        finally:
            hung.cont()
        for lease in leases:
            lease.release()


async def test_a_hung_master_holds_up_nobody_elsewhere(cluster: Cluster) -> None:
    """Keys of the other masters are had at once, however long one does not answer."""
    hung, *others = cluster.nodes[:3]
    url = cluster.url(recovery="off", timeout=FOR_EVER, connect_timeout=FOR_EVER)
    async with AsyncLocks.from_url(url, ttl=600, wait=0) as locks:
        stuck = keys_of(cluster, hung, 1)[0]
        free = [key for each in others for key in keys_of(cluster, each, 5)]
        await (await locks.acquire(stuck)).release()
        hung.stop()
        try:
            waiting = asyncio.ensure_future(locks.acquire(stuck))
            for key in free:
                await (await locks.acquire(key)).release()
            assert not waiting.done()
        finally:
            hung.cont()
        await (await waiting).release()


def test_a_master_that_hung_is_used_again(cluster: Cluster) -> None:
    """When it answers again, its keys can be had, though nobody insists on it."""
    hung = cluster.nodes[0]
    url = cluster.url(recovery="off", timeout=0.3, connect_timeout=0.3)
    with Locks.from_url(url, ttl=TTL, wait=0) as locks:
        key = keys_of(cluster, hung, 1)[0]
        locks.acquire(key, wait=PATIENCE).release()
        hung.stop()
        for _ in range(3):
            with pytest.raises(EngineUnavailable):
                locks.acquire(key)
        hung.cont()
        eventually(lambda: _tried(locks, key))


def test_a_request_to_a_master_that_hangs_makes_nobody_look_for_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused because of what is known already."""
    hung = cluster.nodes[0]
    url = cluster.url(recovery="off", timeout=0.3, connect_timeout=0.3)
    with Locks.from_url(url, ttl=TTL, wait=0) as locks:
        key = keys_of(cluster, hung, 1)[0]
        locks.acquire(key, wait=PATIENCE).release()
        nodes = locks._locker.store._wire._nodes  # type: ignore[attr-defined]
        nodes._hung[Address("127.0.0.1", hung.port)] = TimeoutError()
        doubts: list[object] = []
        monkeypatch.setattr(nodes._lookup, "doubt", lambda: doubts.append(None))
        with pytest.raises(EngineUnavailable, match="callers do not wait for it"):
            locks.acquire(key)
        assert not doubts


def test_a_dead_master_is_not_looked_for_by_everybody(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many ask for keys of a master that died, the others are asked now and then where it is."""
    monkeypatch.setattr(
        asking, "LONGEST_PAUSE", PATIENCE
    )  # So that it hardly matters how long it takes.
    dead, *others = cluster.nodes[:3]
    with Locks.from_url(cluster.url(recovery="off"), wait=0) as locks:
        key = keys_of(cluster, dead, 1)[0]
        locks.acquire(key).release()
        dead.kill()
        before = connections_made(others)
        for _ in range(150):
            with pytest.raises(EngineUnavailable):
                locks.acquire(key)
        assert connections_made(others) - before < 75


def connections_made(servers: list[Server]) -> int:
    return sum(each.client().info("stats")["total_connections_received"] for each in servers)


def _tried(locks: Locks, key: str) -> bool:
    try:
        lease = locks.acquire(key)
    except (EngineUnavailable, LockTimeout):  # What was asked of it while it hung is to be undone.
        return False
    lease.release()
    return True


@pytest.fixture
def deployment() -> Iterator[tuple[str, list[Proxy]]]:
    """A master whose Sentinels are behind proxies, and the URL."""
    with SentinelDeployment() as deployment, ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(each)) for each in deployment.sentinels]
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in proxies)
        patience = f"timeout={FOR_EVER:g}&connect_timeout={FOR_EVER:g}"
        yield f"redis+sentinel://{hosts}/mymaster?recovery=off&{patience}", proxies


def test_silent_sentinels_hold_up_nobody(deployment: tuple[str, list[Proxy]]) -> None:
    """Locks are acquired while any number of the Sentinels do not answer."""
    url, proxies = deployment
    proxies[0].freeze()
    with Locks.from_url(url, wait=0) as locks:
        locks.acquire("a").release()
        for each in proxies:
            each.freeze()
        asked = threading.Event()
        for _ in range(30):
            locks.acquire("a").release()
            asked.wait(0.1)  # Longer in all than what is known of the master may be old.
        for each in proxies:
            each.thaw()


async def test_the_application_s_threads_are_its_own(deployment: tuple[str, list[Proxy]]) -> None:
    """Finding out where a server is needs none of the threads of ``asyncio.to_thread``."""
    url, _proxies = deployment
    used: list[Any] = []

    class Pool(ThreadPoolExecutor):
        def submit(self, *args: Any, **options: Any) -> Any:
            used.append(args)
            return super().submit(*args, **options)

    asyncio.get_running_loop().set_default_executor(Pool(1))
    async with AsyncLocks.from_url(url, wait=0) as locks:
        await (await locks.acquire("a")).release()
        assert not used


def subscribed(server: Server) -> bool:
    """Whether somebody who waits is notified by way of this server."""
    return bool(server.command("PUBSUB", "CHANNELS", "weblock:process:*"))


def leave(cluster: Cluster, leaver: Server) -> None:
    """Has a master leave its cluster in good order; another takes over its slots, with the locks."""
    heir = next(each for each in cluster.nodes[:3] if each is not leaver)
    with leaver.client() as client:
        for name in client.scan_iter("*:lock:*"):
            cluster.migrate(leaver.command("CLUSTER", "KEYSLOT", name), heir)
    for first, last, (_host, port, *_), *_replicas in leaver.command("CLUSTER", "SLOTS"):
        if port == leaver.port:
            leaver.command("CLUSTER", "DELSLOTSRANGE", first, last)
            eventually(partial(_take_over, heir, first, last))
    heir.command("CLUSTER", "BUMPEPOCH")


def _take_over(heir: Server, first: int, last: int) -> bool:
    """Has a master serve slots that it may just be hearing somebody else to have."""
    with suppress(redis.ResponseError):
        heir.command("CLUSTER", "DELSLOTSRANGE", first, last)
    return bool(heir.command("CLUSTER", "ADDSLOTSRANGE", first, last))


def test_a_subscription_leaves_with_its_server(cluster: Cluster) -> None:
    """Those who wait are notified by a server that is still in the cluster."""
    with (
        ThreadPoolExecutor(1) as pool,
        Locks.from_url(cluster.url(recovery="off"), ttl=60) as locks,
    ):
        lease = locks.acquire("a")
        waiting = pool.submit(lambda: locks.acquire("a", wait=60).release())
        eventually(lambda: any(map(subscribed, cluster.nodes)))
        leaver = next(each for each in cluster.nodes if subscribed(each))
        leave(cluster, leaver)
        eventually(lambda: moved(cluster, leaver))
        lease.release()
        waiting.result()


async def test_a_loop_s_subscription_does_too(cluster: Cluster) -> None:
    """The same in asyncio."""
    async with AsyncLocks.from_url(cluster.url(recovery="off"), ttl=60, wait=60) as locks:
        lease = await locks.acquire("a")
        waiting = asyncio.ensure_future(locks.acquire("a"))
        await asyncio.to_thread(eventually, lambda: any(map(subscribed, cluster.nodes)))
        leaver = next(each for each in cluster.nodes if subscribed(each))
        await asyncio.to_thread(leave, cluster, leaver)
        await asyncio.to_thread(eventually, lambda: moved(cluster, leaver))
        await lease.release()
        await (await waiting).release()


def moved(cluster: Cluster, leaver: Server) -> bool:
    """Whether somebody listens, but not on the server that left."""
    return any(map(subscribed, cluster.nodes)) and not subscribed(leaver)
