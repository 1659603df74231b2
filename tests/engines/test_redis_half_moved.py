"""A slot of a cluster that stays half-moved: some of its keys on one master, some on another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis.crc import key_slot

from tests.servers import Cluster, a_redis, a_valkey, an_older_redis
from tests.servers.cluster import Move
from tests.support.renewals import renew_often, renewed
from tests.support.waiting import PATIENCE, eventually, waiters
from weblock import AsyncLocks, EngineRecovering, EngineUnavailable, Locks
from weblock.stores.redis.calls import Layout

TTL = 3.0
LAYOUT = Layout("weblock", 128)
BUCKET = 5
KEYS = [
    key
    for key in (f"key {number}" for number in range(2_000))
    if LAYOUT.bucket(f"default:{key}") == BUCKET
]
"""Keys that share a slot."""

SLOT = key_slot(LAYOUT.tag(BUCKET).encode())


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(request.param(), node_timeout=30) as cluster:
        yield cluster


def on(*servers: Callable[[], str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("cluster", servers, indirect=True, scope="module")


on_valkey = on(a_valkey)
"""What the servers answer of a slot on its way is the same; one test asks all of them."""


def moved(cluster: Cluster, *parts: str) -> Move:
    """A move that has begun, and has taken along the keys with these parts in their names."""
    move = cluster.begin_move(SLOT)
    for part in parts:
        move.take_along(part)
    return move


PARTS = {
    "nothing": (),
    "the epoch": (":epoch",),
    "the locks": (":lock:",),
    "the queues": (":queue:",),
    "all": ("",),
}
"""What has been moved so far."""


@pytest.mark.parametrize(
    ("cluster", "parts"),
    [*((a_valkey, parts) for parts in PARTS.values()), (a_redis, ()), (an_older_redis, ("",))],
    ids=[*PARTS, "redis", "an older redis"],
    indirect=["cluster"],
    scope="module",
)
def test_leases_outlive_a_slot_that_stays_half_moved(
    cluster: Cluster, parts: tuple[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases are renewed again and again, and released; nothing is granted before the new master has recovered."""
    renew_often(monkeypatch)
    held, free, handed = KEYS[:3]
    with (
        ThreadPoolExecutor(1) as pool,
        Locks.from_url(cluster.url(recovery=TTL), ttl=TTL, wait=PATIENCE) as locks,
        Locks.from_url(cluster.url(recovery=TTL), ttl=TTL, wait=PATIENCE) as others,
    ):
        lease, before = locks.acquire(held), locks.acquire(handed)
        waiter = pool.submit(lambda: fence_of(others, handed))
        eventually(lambda: waiters(locks, handed) == 1)
        move = moved(cluster, *parts)
        try:
            for _ in range(3):
                renewed(locks, lease, before)
            lease.extend(1)
            before.release()
            for key in (held, free, handed):
                with pytest.raises(EngineUnavailable, match="is being moved"):
                    others.acquire(key, wait=0)
            renewed(locks, lease)
            assert not parts or not waiter.done()
        finally:
            move.take_along()
            move.end()
        renewed(locks, lease)
        with pytest.raises(EngineRecovering, match="has just got this part"):
            others.acquire(free, wait=0)
        assert waiter.result() > before.fence
        lease.release()
        assert fence_of(others, held) > lease.fence


@on(a_valkey, a_redis)
def test_leases_outlive_a_slot_that_moves_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Valkey 9 and Redis 8.4 move a slot atomically: leases and waiters stay, and then recovery begins."""
    if not cluster.can_migrate_atomically:
        pytest.skip("the server moves one key at a time")
    renew_often(monkeypatch)
    held, free, handed = KEYS[10:13]
    with (
        ThreadPoolExecutor(1) as pool,
        Locks.from_url(cluster.url(recovery=TTL), ttl=TTL, wait=PATIENCE) as locks,
        Locks.from_url(cluster.url(recovery=TTL), ttl=TTL, wait=PATIENCE) as others,
    ):
        lease, before = locks.acquire(held), locks.acquire(handed)
        waiter = pool.submit(fence_of, others, handed)
        eventually(lambda: waiters(locks, handed) == 1)
        cluster.migrate_atomically(SLOT)
        for _ in range(3):
            renewed(locks, lease, before)
        with pytest.raises(EngineRecovering, match="has just got this part"):
            others.acquire(free, wait=0)
        before.release()
        assert waiter.result() > before.fence
        lease.release()
        assert fence_of(others, held) > lease.fence


@on_valkey
@pytest.mark.parametrize("parts", [(), (":lock:",)], ids=["nothing", "the locks"])
def test_readers_outlive_a_slot_that_stays_half_moved(
    cluster: Cluster, parts: tuple[str, ...]
) -> None:
    """Leases that share a key are kept on either server, and each is released by itself."""
    key = KEYS[4]
    with Locks.from_url(cluster.url(recovery="off"), ttl=PATIENCE, wait=PATIENCE) as locks:
        readers = [locks.acquire(key, shared=True) for _ in range(3)]
        fences = [reader.fence for reader in readers]
        move = moved(cluster, *parts)
        try:
            for _ in range(2):
                renewed(locks, *readers)
            readers.pop().release()
        finally:
            move.take_along()
            move.end()
        for reader in readers:
            assert locks.try_acquire(key) is None
            reader.release()
        assert fence_of(locks, key) > max(fences)


@on_valkey
def test_a_process_that_comes_while_a_slot_is_half_moved_can_lock(cluster: Cluster) -> None:
    """What a new connection tries on its server is sent on, and nothing else that is asked there."""
    slots = {bucket: key_slot(LAYOUT.tag(bucket).encode()) for bucket in range(128)}
    first = cluster.master_of(slots[0])
    keys = {LAYOUT.bucket(f"default:key {number}"): f"key {number}" for number in range(2_000)}
    others = [each for each in slots if each and cluster.master_of(slots[each]) is first]
    move = cluster.begin_move(slots[0])
    try:
        with Locks.from_url(cluster.url(recovery=TTL), ttl=TTL, wait=PATIENCE) as locks:
            fence_of(locks, keys[others[0]])
    finally:
        move.take_along()
        move.end()


@on_valkey
async def test_asyncio_goes_on_too(cluster: Cluster) -> None:
    """Tasks renew and release keys of a slot that is half-moved."""
    async with AsyncLocks.from_url(cluster.url(recovery=TTL), ttl=TTL, wait=PATIENCE) as locks:
        lease = await locks.acquire(KEYS[3])
        move = await asyncio.to_thread(moved, cluster, ":lock:")
        try:
            await lease.extend(1)
            await lease.release()
        finally:
            await asyncio.to_thread(move.take_along)
            await asyncio.to_thread(move.end)


@on_valkey
def test_replicas_must_have_a_renewal_that_was_sent_on(cluster: Cluster) -> None:
    """With ``min_replicas``, a renewal in a half-moved slot counts only when replicas have it."""
    url = cluster.url(recovery=TTL, min_replicas=1)
    with Locks.from_url(url, ttl=TTL, wait=PATIENCE) as locks:
        lease = locks.acquire(KEYS[6])
        move = moved(cluster, "")
        try:
            lease.extend(1)
        finally:
            move.take_along()
            move.end()
        lease.release()


@on_valkey
def test_what_was_done_is_known_in_a_half_moved_slot(cluster: Cluster) -> None:
    """``once`` notes and finds its marks on either side."""
    done: list[str] = []
    steps: dict[str, Callable[[], None]] = {
        key: lambda key=key: done.append(key) for key in KEYS[8:10]
    }
    with Locks.from_url(cluster.url(recovery=TTL), ttl=TTL, wait=PATIENCE) as locks:
        locks.once(KEYS[8], steps[KEYS[8]])
        move = moved(cluster, ":lock:", ":epoch")
        try:
            locks.once(KEYS[8], steps[KEYS[8]])
        finally:
            move.take_along()
            move.end()
        for key, step in steps.items():
            locks.once(key, step)
    assert done == KEYS[8:10]


def fence_of(locks: Locks, key: str) -> int:
    """A fence for a key, as new as can be."""
    with locks.hold(key) as lease:
        return lease.fence
