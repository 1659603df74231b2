"""One fault after the other while sixteen workers want one key; then the history is checked."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.servers import (
    Cluster,
    Memcached,
    Postgres,
    SentinelDeployment,
    Server,
    a_redis,
    a_valkey,
)
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import Ensemble, fresh_zookeeper

from . import strikes
from .history import Hold, Span, out_of_order, overlap_by_force, overlaps, read, unexcused
from .rig import DURABLE, OF_A_QUORUM, SOON, TTL, Workers
from .worker import MIXED, Journal, Watch

LONG = "WEBLOCK_LONG" in os.environ

SERVERS = [a_valkey, a_redis] if LONG else [a_valkey]

SHARING = [{}, MIXED] if LONG else [{}]
"""Options of workers: those that exclude each other, and those that share the key at times."""


def strike(workers: Workers, *kinds: strikes.Strikes) -> None:
    """Has every fault strike, and waits each time until the workers go on."""
    for kind in kinds:
        for fault in kind.values():
            fault()
            workers.go_on()


@pytest.mark.parametrize("server_of", SERVERS)
def test_faults_of_one_server(server_of: Callable[[], str]) -> None:
    """Killed and stopped holders, a stopped, paused and forgetful server: nobody ever overlaps."""
    with (
        Server(server_of(), **DURABLE) as server,
        Workers(server.url(recovery=TTL, **SOON)) as workers,
    ):
        on_server, on_data = strikes.on_server(server), strikes.on_data(server)
        strike(workers, strikes.on_workers(workers), on_server, on_data)
        workers.check()


def test_faults_of_the_network() -> None:
    """Late, lost and torn replies, half-open and reset connections: nobody ever overlaps."""
    with (
        Server() as server,
        Proxy(server) as proxy,
        Workers(proxy.url(recovery="off", **SOON)) as workers,
    ):
        strike(workers, strikes.on_network(proxy))
        workers.check()


def test_failovers_of_sentinels() -> None:
    """A master that is replaced, and one that is killed: nobody overlaps, and fences increase."""
    with (
        SentinelDeployment() as deployment,
        Workers(deployment.url(recovery=TTL, **SOON), wait=20.0) as workers,
    ):
        strike(workers, strikes.on_sentinels(deployment))
        deployment.kill_master()
        workers.go_on()
        workers.check()


def test_failovers_and_moves_of_a_cluster() -> None:
    """A failover, a slot that moves, a master that is killed: nobody overlaps, fences increase."""
    with Cluster() as cluster, Workers(cluster.url(recovery=TTL, **SOON), wait=20.0) as workers:
        slot = strikes.slot_in_use(cluster)
        strike(workers, strikes.on_cluster(cluster, slot))
        cluster.kill_master_of(slot)
        workers.go_on()
        workers.check()


def test_faults_of_a_quorum() -> None:
    """One server of three after the other dies, hangs and forgets: nobody overlaps or is kept out."""
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(**DURABLE)) for _ in range(3)]
        urls = [server.url(recovery=TTL, **OF_A_QUORUM) for server in servers]
        workers = stack.enter_context(Workers(urls, wait=20.0))
        strike(workers, strikes.on_quorum(servers), strikes.on_workers(workers))
        workers.check()


def test_faults_of_files(tmp_path: Path) -> None:
    """A directory that is lost, files that stay locked, no descriptors: nobody ever overlaps.

    But for those whose leases were deleted, until they are told.
    """
    with Workers(f"file://{tmp_path}/locks?allow_container=true") as workers:
        strike(workers, strikes.on_files(tmp_path / "locks", workers), strikes.on_workers(workers))
        workers.check()


def test_faults_of_memcached() -> None:
    """It hangs, and it forgets everything: nobody ever overlaps."""
    with (
        Memcached("-M") as server,
        Workers(server.url(recovery=TTL, timeout=0.5), wait=20.0) as workers,
    ):
        strike(workers, strikes.on_memcached(server), strikes.on_workers(workers))
        workers.check()


@pytest.mark.parametrize("options", SHARING)
def test_faults_of_postgresql(options: dict[str, Any]) -> None:
    """It crashes, hangs and ends all connections: nobody ever overlaps, beyond what limits allow."""
    query = "create=true&timeout=0.5&connect_timeout=2"
    with (
        Postgres() as server,
        Workers(f"{server.url()}?{query}", wait=20.0, **options) as workers,
    ):
        strike(workers, strikes.on_postgres(server), strikes.on_workers(workers))
        workers.check()


@pytest.mark.parametrize("options", SHARING)
def test_faults_of_zookeeper(options: dict[str, Any]) -> None:
    """Leaders and followers are killed and hang: nobody ever overlaps, beyond what limits allow."""
    with (
        Ensemble() as ensemble,
        Workers(fresh_zookeeper(ensemble.address), wait=20.0, **options) as workers,
    ):
        strike(workers, strikes.on_zookeeper(ensemble), strikes.on_workers(workers))
        workers.check()


def test_a_worker_that_comes_late_has_held_nothing(tmp_path: Path) -> None:
    """One that was stopped from its grant until its lease had ended is not taken for a holder."""
    journal = Journal(tmp_path / "late.jsonl")
    for held in (True, False):
        with Watch(journal, SimpleNamespace(held=held, fence=1 + held, limit=1)) as watch:
            watch.look()
    found = read(tmp_path)
    assert [hold.fence for hold in found.holds] == [2]
    assert [fence for _, fence in found.fences] == [2]


def test_an_overlap_is_excused_only_by_a_loss() -> None:
    """The former lease was voided while it was held; another overlap is none of the loss."""
    voided, later, apart = Hold(10, 30, 1), Hold(25, 40, 2), Hold(100, 130, 3)
    pairs = [(voided, later), (apart, Hold(120, 140, 4))]
    assert unexcused(pairs, [Span(20, 50)]) == pairs[1:]
    assert unexcused(pairs, [Span(41, 50)]) == pairs
    assert unexcused(pairs, [Span(110, 115)]) == pairs


def test_the_checkers_find_what_is_planted() -> None:
    """The sweep agrees with a look at each moment, and sees overlaps and fences out of order."""
    dice = random.Random(3)
    seen = {True: 0, False: 0}
    for _ in range(2_000):
        holds = []
        for _ in range(dice.randint(2, 8)):
            began = dice.randint(0, 60)
            limit = dice.choice([1, 1, 2, 3])
            holds.append(Hold(began, began + dice.randint(0, 6), 1, limit))
        assert bool(overlaps(holds)) == overlap_by_force(holds)
        seen[overlap_by_force(holds)] += 1
    assert min(seen.values()) > 100
    assert out_of_order([(1, 5), (2, 7), (3, 6), (4, 7), (5, 8)]) == [(3, 6), (4, 7)]
