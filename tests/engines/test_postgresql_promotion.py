"""A replica that is promoted when its primary has died: what became of the leases."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import urlencode

import psycopg
import pytest

from tests.servers.postgres import Postgres, Standby
from tests.support.waiting import PATIENCE, eventually
from weblock import EngineRecovering, EngineUnavailable, LeaseLost, Locks

pytestmark = pytest.mark.skipif(
    not os.environ.get("WEBLOCK_LONG"),
    reason="it makes a replica; a new timeline is in test_postgresql.py, too; with WEBLOCK_LONG=1",
)


@pytest.fixture
def pair() -> Iterator[tuple[Postgres, Standby]]:
    with Postgres() as primary, Standby(primary) as standby:
        eventually(lambda: streams(primary))
        yield primary, standby


def streams(primary: Postgres) -> bool:
    return counted(primary, "pg_stat_replication WHERE state = 'streaming'") == 1


def counted(server: Postgres, what: str) -> int:
    with psycopg.connect(server.url()) as connection:
        (count,) = connection.execute(f"SELECT count(*) FROM {what}".encode()).fetchone() or (0,)
    return int(count)


def url_of(pair: tuple[Postgres, Standby], **options: object) -> str:
    """Both, of which the one that can be written to is used."""
    hosts = ",".join(f"127.0.0.1:{each.port}" for each in pair)
    query = urlencode({"create": "true", "connect_timeout": 2, **options})
    return f"postgresql://postgres@{hosts}/postgres?{query}"


def test_a_replica_that_lacks_a_lease_grants_none_before_its_holder_knows(
    pair: tuple[Postgres, Standby],
) -> None:
    """With asynchronous replication a lease may be lost: then the key waits for ``recovery`` seconds."""
    primary, standby = pair
    url = url_of(pair, recovery=3600)
    with Locks.from_url(url, ttl=5, wait=0) as locks, Locks.from_url(f"{url}&", wait=0) as others:
        first = locks.acquire("key")
        first.release()
        # A release does not wait for the disk, and is sent to a replica when it is there.
        released = "weblock_lease WHERE key LIKE '%key' AND owner = ''"
        eventually(lambda: counted(standby, released) == 1)
        standby.kill()
        lease = locks.acquire("key")
        primary.kill()
        standby.start()
        standby.promote()
        eventually(lambda: refused(others))
        eventually(lambda: not lease.held)
        standby.execute(
            "UPDATE weblock_lease SET since = 1, ends = 1 WHERE key = ''"
        )  # The time has passed.
        following = others.acquire("key", wait=PATIENCE)
        assert following.fence
        assert lease.fence
        assert following.fence > lease.fence
        following.release()
        with pytest.raises(LeaseLost):
            lease.release()


def refused(locks: Locks) -> bool:
    """Whether a caller is told that the server may have lost leases."""
    try:
        locks.acquire("key").release()
    except EngineRecovering:
        return True
    except EngineUnavailable:
        return False
    raise AssertionError("a lease was granted")


def test_a_synchronous_replica_has_every_lease(pair: tuple[Postgres, Standby]) -> None:
    """With ``synchronous_standby_names`` and ``recovery=off`` a lease lives on, and keeps others out."""
    primary, standby = pair
    primary.execute(
        "ALTER SYSTEM SET synchronous_standby_names = 'standby'",
        "ALTER SYSTEM SET synchronous_commit = 'on'",
        "SELECT pg_reload_conf()",
    )
    eventually(lambda: counted(primary, "pg_stat_replication WHERE sync_state = 'sync'") == 1)
    url = url_of(pair, recovery="off")
    with (
        Locks.from_url(url, ttl=PATIENCE, wait=0) as locks,
        Locks.from_url(f"{url}&", wait=0) as others,
    ):
        lease = locks.acquire("key")
        primary.kill()
        standby.promote()
        eventually(lambda: busy(others))
        lease.extend(1)
        lease.release()
        with others.hold("key") as following:
            assert following.fence
            assert lease.fence
            assert following.fence > lease.fence


def busy(locks: Locks) -> bool:
    """Whether the key is taken, to a caller that reaches the new primary."""
    try:
        return locks.try_acquire("key") is None
    except EngineUnavailable:
        return False
