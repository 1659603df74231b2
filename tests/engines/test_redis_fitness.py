"""Servers that must not keep leases as they are, or will not: each is told, with the remedy."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trustme
from redis.exceptions import ResponseError

from tests.servers import Server, a_redis, binaries
from tests.servers.rights import USER, grant_least_rights, unknown
from tests.servers.tls import TlsFront
from tests.support.renewals import renewed
from tests.support.waiting import PATIENCE, eventually
from weblock import AsyncLocks, EngineUnavailable, Locks
from weblock._core.ports import Switchboard
from weblock.stores.redis.blocking import Receiver
from weblock.stores.redis.link import Subscription


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(a_redis()) as server:
        yield server


def refusal(url: str) -> str:
    """What is said when a lock is wanted there; both APIs say the same."""
    with Locks.from_url(url, wait=0) as locks, pytest.raises(EngineUnavailable) as refused:
        locks.acquire("a")
    return str(refused.value)


async def asyncio_refusal(url: str) -> str:
    async with AsyncLocks.from_url(url, wait=0) as locks:
        with pytest.raises(EngineUnavailable) as refused:
            await locks.acquire("a")
    return str(refused.value)


async def test_a_server_that_may_evict_leases_is_refused(server: Server) -> None:
    """An eviction policy is refused when memory is bounded, and accepted by name only."""
    server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with Locks.from_url(server.url(recovery="off", prefix="unbounded")) as locks:
        locks.acquire("a").release()
    server.command("CONFIG", "SET", "maxmemory", "100mb")
    url = server.url(recovery="off", prefix="bounded")
    assert "maxmemory-policy noeviction" in refusal(url)
    assert "allow_eviction=true" in await asyncio_refusal(url)
    with Locks.from_url(f"{url}&allow_eviction=true") as locks:
        locks.acquire("a").release()


MAY_EVICT = [
    ("CONFIG", "SET", "maxmemory", "100mb"),
    ("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"),
]
IS_A_REPLICA = [("CONFIG", "SET", "replica-read-only", "no"), ("REPLICAOF", "127.0.0.1", "1")]


@pytest.mark.parametrize(
    ("changes", "told"),
    [(MAY_EVICT, "maxmemory-policy noeviction"), (IS_A_REPLICA, "it is a replica")],
    ids=["evicts", "is a replica"],
)
async def test_a_server_that_becomes_unfit_grants_nothing_more(
    server: Server, changes: list[tuple[str, ...]], told: str
) -> None:
    """Both APIs notice it on open connections, keep what they hold, and lock again when it is mended."""
    loop, url = asyncio.get_running_loop(), server.url(recovery="off")
    with Locks.from_url(url) as locks:
        async with AsyncLocks.from_url(url) as others:

            def both(told: str) -> bool:
                here = said(locks)
                asked = asyncio.run_coroutine_threadsafe(said_in_asyncio(others), loop)
                there = asked.result(PATIENCE)
                return told in here and told in there

            held, theirs = locks.acquire("held"), await others.acquire("theirs")
            for change in changes:
                server.command(*change)
            await asyncio.to_thread(eventually, lambda: both(told))
            await asyncio.to_thread(renewed, locks, held)
            await asyncio.to_thread(renewed, others, theirs)
            held.release()
            await theirs.release()
            server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
            server.command("REPLICAOF", "NO", "ONE")
            await asyncio.to_thread(eventually, lambda: not said(locks))
            assert not await said_in_asyncio(others)


def said(locks: Locks) -> str:
    """Why a free key is not granted; nothing if it is."""
    try:
        locks.acquire("a", wait=0).release()
    except EngineUnavailable as failure:
        return failure.reason
    return ""


async def said_in_asyncio(locks: AsyncLocks) -> str:
    try:
        await (await locks.acquire("a", wait=0)).release()
    except EngineUnavailable as failure:
        return failure.reason
    return ""


async def test_a_replica_is_refused(server: Server) -> None:
    """A replica is told from the primary, and the message says what to write instead."""
    with Server(a_redis(), replicaof=("127.0.0.1", server.port)) as replica:
        assert "redis+sentinel://" in refusal(replica.url())
        assert "use the address of the primary" in await asyncio_refusal(replica.url())


def test_a_node_of_a_cluster_is_refused() -> None:
    """A node of a cluster is not taken for a server of its own, nor the other way round."""
    with Server(cluster_enabled="yes") as node, Server() as single:
        assert "use redis+cluster://" in refusal(node.url())
        cluster = single.url().replace("redis://", "redis+cluster://")
        assert "cluster" in refusal(cluster)


async def test_a_wrong_password_is_told(server: Server) -> None:
    """Who is not let in is told so, and the password is in no message."""
    url = server.url(user="locks:c4nary")
    for said in (refusal(url), await asyncio_refusal(url)):
        assert "rejected the user or the password" in said
        assert "c4n" not in said


@pytest.mark.parametrize("name", sorted(binaries()))
async def test_a_server_without_resp3_does_not_have_the_password_repeated(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that does not know HELLO repeats its arguments; no error, cause or log line has them."""
    with Server(name, password="c4nary", **unknown("HELLO")) as server:
        url = server.url(recovery="off")
        async with AsyncLocks.from_url(url, wait=0) as locks:
            with pytest.raises(EngineUnavailable) as refused:
                await locks.acquire("a")
        with Locks.from_url(url) as locks:
            lease = locks.acquire("a")
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(lambda: locks.acquire("a").release())
                if name.startswith("redis"):  # Valkey answers that it wants a password first.
                    eventually(lambda: "get no notifications" in caplog.text)
                lease.release()
                waiting.result(PATIENCE)
    told = "".join(traceback.format_exception(refused.value)) + caplog.text
    assert "c4nary" not in told


@pytest.mark.parametrize("name", sorted(binaries()))
@pytest.mark.parametrize(
    ("rule", "told"), [("-hset", "HSET"), ("resetchannels", "PUBLISH"), ("-ping", "PING")]
)
def test_a_missing_right_is_named(name: str, rule: str, told: str) -> None:
    """Of a right that the user lacks, the message has the name, and the page with the remedy."""
    with Server(name) as server:
        grant_least_rights(server, rule)
        said = refusal(server.url(user=USER))
    assert f"has no right to run {told}" in said
    assert "docs/redis.md" in said


def test_the_least_rights_are_the_least(server: Server) -> None:
    """With the rights of the documentation, everything else is denied to the user."""
    grant_least_rights(server)
    user, _, password = USER.partition(":")
    with server.client(username=user, password=password) as client:
        for command in ("KEYS *", "FLUSHALL", "CONFIG GET *", "GET secret", "PUBLISH other x"):
            with pytest.raises(Exception, match=r"(?i)permission"):
                client.execute_command(*command.split())


async def test_who_may_not_subscribe_is_told_and_still_served(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Without notifications, waiters look once a second; a warning says why."""
    grant_least_rights(server, "-subscribe")
    url = server.url(user=USER, recovery="off")
    with Locks.from_url(url) as locks:
        lease = locks.acquire("a")
        async with AsyncLocks.from_url(url, wait=30) as others:
            waiting = asyncio.ensure_future(others.acquire("a"))
            await asyncio.to_thread(eventually, lambda: locks.inspect("a").waiters)  # type: ignore[union-attr]
            lease.release()
            await (await waiting).release()
    assert "get no notifications" in caplog.text


def test_a_server_without_resp3_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Where each handshake of the listener is refused, one warning says why hand-overs are slow."""
    refused: list[object] = []

    def connect(subscription: Any) -> NoReturn:
        refused.append(subscription)
        raise ResponseError("unknown command 'HELLO'")

    receiver = Receiver(Subscription("channel", Switchboard(), lambda _: True), connect)
    receiver.listen()
    eventually(lambda: len(refused) > 2)
    receiver.close()
    assert caplog.text.count("get no notifications") == 1


@pytest.mark.parametrize("name", sorted(binaries()))
def test_a_full_memory_takes_no_new_leases_but_keeps_those_that_are(name: str) -> None:
    """With noeviction, a lease is renewed and released while new ones are refused."""
    with (
        Server(name, maxmemory="100mb", maxmemory_policy="noeviction") as server,
        Locks.from_url(server.url(recovery="off"), wait=0) as locks,
    ):
        lease = locks.acquire("held")
        server.command("CONFIG", "SET", "maxmemory", "1")
        lease.extend(5)
        with pytest.raises(EngineUnavailable, match="memory is full"):
            locks.acquire("another")
        lease.release()
        server.command("CONFIG", "SET", "maxmemory", "100mb")
        assert locks.inspect("held") is None


def test_too_few_replicas_grant_nothing(server: Server) -> None:
    """A lease that fewer replicas have than were asked for is none, and nothing is left of it."""
    with Server(a_redis(), replicaof=("127.0.0.1", server.port)) as replica:
        eventually(lambda: replica.client().info("replication")["master_link_status"] == "up")
        with Locks.from_url(server.url(recovery="off", min_replicas=1, timeout=5)) as locks:
            locks.acquire("a").release()
        # It waits for half of the timeout that there are two.
        url = server.url(recovery="off", min_replicas=2, timeout=4)
        assert "1 of at least 2 replicas" in refusal(url)
        with Locks.from_url(server.url(recovery="off")) as locks:
            eventually(lambda: locks.inspect("a") is None)


def test_a_lease_is_not_renewed_without_its_replicas(server: Server) -> None:
    """A master that has lost its replicas cannot keep a holder alive."""
    with Server(a_redis(), replicaof=("127.0.0.1", server.port)) as replica:
        eventually(lambda: replica.client().info("replication")["master_link_status"] == "up")
        # A renewal waits for a replica for half of the timeout, and is refused before the lease ends.
        url = server.url(recovery="off", min_replicas=1, timeout=1)
        with Locks.from_url(url, ttl=2, wait=20) as locks:
            lease = locks.acquire("a")
            replica.kill()
            eventually(lambda: not lease.held)


async def test_tls_trusts_only_its_own_ca_and_name(server: Server, tmp_path: Path) -> None:
    """Over TLS both APIs lock; a server of another CA, or under another name, is refused."""
    ours, theirs = trustme.CA(), trustme.CA()
    for ca, name in ((ours, "ours.pem"), (theirs, "theirs.pem")):
        ca.cert_pem.write_to_path(tmp_path / name)
    options = f"?recovery=off&timeout={PATIENCE:g}&ssl_ca_certs={tmp_path}"
    with TlsFront(server, ours, "localhost") as front:
        good = f"rediss://localhost:{front.port}/0{options}/ours.pem"
        with Locks.from_url(good) as locks, locks.hold("a"):
            async with AsyncLocks.from_url(good) as others:
                assert await others.try_acquire("a") is None
        stranger = f"rediss://localhost:{front.port}/0{options}/theirs.pem"
        misnamed = f"rediss://127.0.0.1:{front.port}/0{options}/ours.pem"
        for url in (stranger, misnamed):
            assert "CERTIFICATE_VERIFY_FAILED" in refusal(url)
            assert "CERTIFICATE_VERIFY_FAILED" in await asyncio_refusal(url)


async def test_a_unix_socket(tmp_path: Path) -> None:
    """Both APIs lock over a server's Unix socket."""
    path = tmp_path / "redis.sock"
    with Server(unixsocket=str(path)):
        url = f"unix://{path}?db=1&recovery=off"
        with Locks.from_url(url) as locks, locks.hold("a"):
            async with AsyncLocks.from_url(url) as others:
                assert await others.try_acquire("a") is None
