"""Servers that lose leases: restarts, flushes, promotions. Whoever was forgotten is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import pytest

from tests.servers import SentinelDeployment, Server, binaries
from tests.support.renewals import renewed
from tests.support.waiting import PATIENCE, eventually, now
from weblock import (
    ConfigurationError,
    EngineRecovering,
    EngineUnavailable,
    LeaseLost,
    Locks,
)

T = TypeVar("T")

TTL = 1.0
"""Seconds of a lease, and of recovery."""


@pytest.fixture(params=sorted(binaries()))
def each_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of every version, which writes down what it is told before it answers."""
    with Server(request.param, appendonly="yes", appendfsync="always") as server:
        yield server


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(appendonly="yes", appendfsync="always") as server:
        yield server


def locks_on(server: Server, **options: object) -> Locks:
    terms = {"ttl": TTL, "wait": PATIENCE, **options}
    return Locks.from_url(server.url(recovery=TTL), **terms)


def use(locks: Locks, key: str) -> None:
    """Has a key for a moment, as soon as the server grants it."""
    lease = locks.acquire(key)
    with suppress(LeaseLost):  # On a machine too slow for its ttl.
        lease.release()


def restart_empty(server: Server) -> None:
    server.restart(keep_data=False)


def flush(server: Server) -> None:
    server.command("FLUSHALL")


@pytest.mark.parametrize("lose", [restart_empty, flush])
def test_nobody_gets_a_key_whose_holder_was_forgotten(
    each_server: Server, lose: Callable[[Server], None]
) -> None:
    """After a loss, a key that is held is granted to another only when its holder has lost it.

    The fence that is given then is above all that were given before.
    """
    with locks_on(each_server) as locks:
        lease = locks.acquire("held")
        lose(each_server)
        later, was_held = in_a_thread(lambda: (locks.acquire("held"), lease.held))
        assert not was_held
        assert later.fence > lease.fence


def test_a_lease_outlives_a_server_that_keeps_its_data(each_server: Server) -> None:
    """Who holds a lease when the server restarts with its data goes on holding it."""
    settle_at_once(each_server)
    with (
        Locks.from_url(each_server.url(recovery=PATIENCE), ttl=PATIENCE) as locks,
        Locks.from_url(each_server.url(recovery="off")) as others,
        locks.hold("held") as lease,
    ):
        each_server.restart(keep_data=True)
        renewed(locks, lease)
        with suppress(EngineRecovering):
            assert others.try_acquire("held") is None


def test_who_asks_meanwhile_is_told_how_long(server: Server) -> None:
    """During recovery no key is said to be busy: the error says why, and when to come back."""
    settle_at_once(server)
    with Locks.from_url(server.url(recovery=30), ttl=TTL) as locks:
        assert locks.try_acquire("a")
        server.command("FLUSHALL")
        for ask in (lambda: locks.acquire("a", wait=0), lambda: locks.try_acquire("a")):
            with pytest.raises(EngineRecovering, match="may have been emptied") as refused:
                ask()
            assert 0 < refused.value.retry_after <= 30


def test_a_server_that_has_been_up_for_long_costs_nobody_anything() -> None:
    """The first use of a server that has been up for longer than a ttl is granted at once."""
    with Server() as server, server.client() as client:
        while int(client.info("server")["uptime_in_seconds"]) <= TTL:
            time.sleep(0.1)
        with locks_on(server) as locks:
            assert locks.try_acquire("a")


def test_the_recovery_is_the_longest_ttl_of_the_locks_on_an_engine(server: Server) -> None:
    """By default a server that was restarted grants nothing until leases of that ttl have ended."""
    url = server.url()
    with Locks.from_url(url, ttl=1) as locks, Locks.from_url(url, ttl=30) as others:
        restarted = now()
        server.restart(keep_data=False)
        with pytest.raises(EngineRecovering, match="started just now") as refused:
            locks.acquire("a", wait=0)
        assert 20 < refused.value.retry_after + now() - restarted <= 32
        with pytest.raises(
            ConfigurationError, match=r"ttl=31 is longer than recovery=30.*recovery=31"
        ):
            others.acquire("a", ttl=31)


def test_a_renewed_lease_must_end_before_the_recovery(server: Server) -> None:
    """A ttl above five minutes needs a recovery of its own; a lease that is not renewed does not."""
    with pytest.raises(ConfigurationError, match=r"ttl=301 is longer than recovery=300"):
        Locks.from_url(server.url(), ttl=301)
    with Locks.from_url(server.url(recovery="off"), ttl=301) as locks:
        locks.acquire("a", ttl=1000).release()
    settle_at_once(server)
    with Locks.from_url(server.url(recovery=TTL), ttl=TTL) as locks:
        locks.acquire("a", ttl=1000, renew=False).release()


def test_who_does_not_want_to_wait_leaves_the_others_alone(server: Server) -> None:
    """With ``recovery=off`` a client is granted at once, and one with ``recovery=30`` waits as ever."""
    with (
        Locks.from_url(server.url(recovery="off"), ttl=PATIENCE) as careless,
        Locks.from_url(server.url(recovery=30), ttl=TTL) as careful,
    ):
        server.command("FLUSHALL")
        with careless.hold("a"):
            pass
        with pytest.raises(EngineRecovering) as refused:
            careful.acquire("a", wait=0)
        assert refused.value.retry_after > TTL


def test_a_master_that_comes_back_is_noticed(server: Server) -> None:
    """One that was replaced, and takes its place back, has forgotten the leases since: it recovers.

    Also to a client whose connection has outlived all of it.
    """
    with (
        Server(repl_diskless_sync_delay=0) as other,
        Locks.from_url(server.url(recovery=30), ttl=30, wait=60) as locks,
        Locks.from_url(server.url(recovery=30), ttl=30, wait=0) as bystander,
    ):
        settle_at_once(server)
        assert bystander.try_acquire("before") is not None
        follow(other, server)
        other.command("REPLICAOF", "NO", "ONE")
        lease = locks.acquire("held", renew=False)
        follow(server, other)
        server.command("REPLICAOF", "NO", "ONE")
        time_of_server = Locks.from_url(server.url(recovery=30), ttl=30, wait=0)
        for late in (bystander, time_of_server):
            with pytest.raises(EngineRecovering, match="taken the place of another"):
                late.acquire("held")
        assert lease.held
        time_of_server.close()


def follow(replica: Server, master: Server) -> None:
    """Makes a server the replica of another, with all that the other has."""
    replica.command("REPLICAOF", "127.0.0.1", str(master.port))
    up = "master_link_status"
    eventually(lambda: replica.client().info("replication").get(up) == "up")


LOST_LONG_AGO = """
local server = { cmsgpack.unpack(redis.call('HGET', KEYS[1], 'server')) }
server[5] = 1
redis.call('HSET', KEYS[1], 'server', cmsgpack.pack(unpack(server)))
"""

OF_ANOTHER_VERSION = "redis.call('HSET', KEYS[1], 'server', cmsgpack.pack('0'))"


def settle_at_once(server: Server) -> None:
    """Has a server send its data to replicas without waiting for more of them.

    And lets it forget that it was started just now: what it knows of its age it knows in seconds.
    """
    server.command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    with Locks.from_url(server.url(recovery="off")) as locks:
        locks.acquire("first").release()
    name = "weblock:{0}:epoch"
    server.command("EVAL", LOST_LONG_AGO, "1", name)


def test_nothing_is_left_of_keys_that_nobody_has(each_server: Server) -> None:
    """However many keys were held, and waited for, and given back: the server keeps none of them."""
    with Locks.from_url(each_server.url(recovery="off"), ttl=PATIENCE) as locks:
        fences = [fence_of(locks, f"key {number % 50}") for number in range(150)]
        with locks.hold("wanted"):
            assert in_a_thread(lambda: locks.try_acquire("wanted")) is None
        left = each_server.command("KEYS", "weblock:*")
        assert left == ["weblock:{0}:epoch"]
        assert len(set(fences[:50]) | set(fences[50:])) == 150
        assert fences == sorted(fences)
        assert locks.list() == []


def test_it_is_said_once(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """One warning says why nobody gets a lock, and what to do, however many ask."""
    with Locks.from_url(server.url(recovery=30), ttl=TTL, wait=5) as locks:
        server.command("FLUSHALL")
        for _ in range(3):
            with pytest.raises(EngineRecovering):
                locks.acquire("a")
    warnings = [each for each in caplog.records if each.levelname == "WARNING"]
    (said,) = [each for each in warnings if each.__dict__.get("engine") == locks.engine]
    assert "may have been emptied" in said.message
    assert "recovery=off" in said.message


def test_another_layout_is_named(server: Server) -> None:
    """Locks that another version has left in another form are left alone, and the error says what to do."""
    name = "weblock:{0}:epoch"
    server.command("EVAL", OF_ANOTHER_VERSION, "1", name)
    with Locks.from_url(server.url()) as locks:
        with pytest.raises(ConfigurationError, match=r"in the format '0'.*the format '3'"):
            locks.acquire("a")
        assert server.command("KEYS", "*") == [name]
        assert server.command("HLEN", name) == 1


def test_a_lease_is_given_back_although_another_version_has_come(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """The block ends as if the server did not answer, and the keeper tries again, without a crash."""
    with Locks.from_url(server.url(recovery="off"), ttl=TTL) as locks:
        with locks.hold("a"):
            server.command("RENAME", "weblock:{0}:epoch", "ours")
            server.command("EVAL", OF_ANOTHER_VERSION, "1", "weblock:{0}:epoch")
        server.command("RENAME", "ours", "weblock:{0}:epoch")
        locks.acquire("a", wait=PATIENCE).release()
    assert not [each for each in caplog.records if each.levelname == "CRITICAL"]


def test_a_promoted_replica_recovers() -> None:
    """After a failover of Sentinels, the new master waits before it grants what may be held."""
    with (
        SentinelDeployment() as deployment,
        Locks.from_url(deployment.url(recovery=TTL), ttl=TTL, wait=PATIENCE) as locks,
    ):
        lease = locks.acquire("held")
        deployment.kill_master()
        later, was_held = in_a_thread(lambda: (locks.acquire("held"), lease.held))
        assert not was_held
        assert later.fence > lease.fence
        deployment.failover()
        # The old master may grant a last lease, which is lost with it.
        fences: list[int] = []
        eventually(
            lambda: fences.append(in_a_thread(lambda: fence_of(locks, "another"))) or fences,
            despite=LeaseLost,
        )
        assert fences[0] > later.fence


def in_a_thread(call: Callable[[], T]) -> T:
    """What ``call`` returns to another than us: who holds a key may not wait for it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def fence_of(locks: Locks, key: str) -> int:
    """A fence for a key, as new as can be."""
    lease = locks.acquire(key)
    with suppress(LeaseLost):  # On a machine too slow for its ttl.
        lease.release()
    return lease.fence


def test_locks_that_rest_keep_their_recovery() -> None:
    """An application that shuts down and starts again has a new engine, which covers the same ttl."""
    with Locks.from_url("redis://127.0.0.1:1", ttl=60) as locks:
        locks._suspend()
        with suppress(EngineUnavailable):
            locks.try_acquire("key")
        assert locks._engine.recovery
        assert locks._engine.recovery.seconds == 60
