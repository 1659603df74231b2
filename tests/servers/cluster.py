"""A cluster of three masters, each with a replica."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

import redis

from tests.support.urls import ANSWERED
from tests.support.waiting import eventually

from .single import Server

SLOTS = 16384


class Cluster:
    """Six nodes that notice the end of one in half a second, or after ``node_timeout`` seconds.

    A busy machine may be silent for half a second, and then the cluster is down for a moment: a test
    that needs no failover gives its nodes more time.
    """

    def __init__(self, name: str | None = None, *, node_timeout: int | None = None) -> None:
        self._stack = ExitStack()
        self.nodes = [self._node(name) for _ in range(6)]
        masters, replicas = self.nodes[:3], self.nodes[3:]
        eventually(self._acquainted, despite=redis.RedisError)
        for index, node in enumerate(masters):
            slots = range(SLOTS * index // 3, SLOTS * (index + 1) // 3)
            node.command("CLUSTER", "ADDSLOTS", *slots)
        for master, replica in zip(masters, replicas, strict=True):
            eventually(
                partial(replica.command, "CLUSTER", "REPLICATE", _id(master)),
                despite=redis.RedisError,
            )
        eventually(self._converged, despite=redis.RedisError)
        for node in self.nodes:
            node.command("CONFIG", "SET", "cluster-replica-no-failover", "no")
        if node_timeout:  # From now on, for a cluster that begins waits for as long to be up.
            for node in self.nodes:
                node.command("CONFIG", "SET", "cluster-node-timeout", node_timeout * 1000)

    def url(self, **query: Any) -> str:
        """Its URL, with options of the engine as ``Server.url`` has them. It names two of the nodes."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:2])
        return f"redis+cluster://{hosts}?{urlencode({**ANSWERED, **query})}"

    def master_of(self, slot: int) -> Server:
        """The node that serves a slot, as one that lives sees it."""
        node = next(node for node in self.nodes if node.alive)
        for first, last, (_host, port, *_), *_replicas in node.command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(each for each in self.nodes if each.port == port)
        raise LookupError(f"nobody serves slot {slot}")

    def kill_master_of(self, slot: int) -> Server:
        """Kills the node that serves a slot; returns the one that has taken over."""
        old = self.master_of(slot)
        old.kill()
        eventually(lambda: self.master_of(slot) is not old, despite=redis.RedisError)
        return self.master_of(slot)

    def failover(self, slot: int) -> Server:
        """Has the replica of the node that serves a slot take over, losing nothing."""
        old = self.master_of(slot)
        replica = next(node for node in self.nodes if _master_port(node) == old.port)
        replica.command("CLUSTER", "FAILOVER")
        eventually(lambda: self.master_of(slot) is replica, despite=redis.RedisError)
        return replica

    def migrate(self, slot: int, to: Server | None = None) -> Server:
        """Moves a slot with its keys to another master, step by step as ``redis-cli`` does."""
        move = self.begin_move(slot, to)
        move.take_along()
        move.end()
        return move.target

    @property
    def can_migrate_atomically(self) -> bool:
        told = "".join(self.nodes[0].command("CLUSTER", "HELP"))
        return "MIGRATESLOTS" in told or "MIGRATION" in told

    def migrate_atomically(self, slot: int) -> None:
        """Moves a slot with its keys to another master at once, as Valkey 9 and Redis 8.4 can."""
        source = self.master_of(slot)
        target = next(node for node in self.nodes if node is not source and not _master_port(node))
        if source.client().info("server").get("server_name") == "valkey":
            source.command(
                *("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", _id(target))
            )
        else:
            target.command("CLUSTER", "MIGRATION", "IMPORT", slot, slot)
        eventually(lambda: self.master_of(slot) is target)

    def begin_move(self, slot: int, to: Server | None = None) -> Move:
        """Has a slot be on its way to another master, with all of its keys still where they were."""
        source = self.master_of(slot)
        masters = (self.master_of(SLOTS * index // 3) for index in range(3))
        target = to or next(node for node in masters if node is not source)
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", _id(source))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", _id(target))
        return Move(self, slot, source, target)

    def _node(self, name: str | None) -> Server:
        return self._stack.enter_context(
            Server(
                name,
                cluster_enabled="yes",
                cluster_node_timeout=500,
                cluster_replica_validity_factor=0,
                repl_diskless_sync_delay=0,
                # Until all is as it should be: a master that gets no processor meanwhile stays one.
                cluster_replica_no_failover="yes",
            )
        )

    def _acquainted(self) -> bool:
        """Whether each node knows all others. A greeting that is not answered in a second is forgotten."""
        strangers = [node for node in self.nodes if len(_known(node)) < len(self.nodes)]
        for node in self.nodes[1:]:
            if node in strangers:
                node.command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        return not strangers

    def _converged(self) -> bool:
        return all(
            node.client().cluster("info").get("cluster_state") == "ok" for node in self.nodes
        ) and all(
            node.client().info("replication").get("master_link_status") == "up"
            for node in self.nodes[3:]
        )

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Move(NamedTuple):
    """A slot on its way from one master to another."""

    cluster: Cluster
    slot: int
    source: Server
    target: Server

    def take_along(self, wanted: str = "") -> None:
        """Moves the keys that are still at the source and have ``wanted`` in their names.

        A node that has lost sight of the others for a moment, and says that the cluster is down, is
        asked again.
        """
        eventually(partial(self._take_along, wanted), despite=redis.exceptions.ClusterDownError)

    def _take_along(self, wanted: str) -> bool:
        while names := self._left(wanted):
            for name in names:
                self.source.command("MIGRATE", "127.0.0.1", self.target.port, name, 0, 5000)
        return True

    def end(self) -> None:
        """Gives the slot to the target, where its keys must be."""
        for node in (self.target, self.source):
            node.command("CLUSTER", "SETSLOT", self.slot, "NODE", _id(self.target))
        eventually(lambda: self.cluster.master_of(self.slot) is self.target)

    def _left(self, wanted: str) -> list[str]:
        names = self.source.command("CLUSTER", "GETKEYSINSLOT", self.slot, 1000)
        return [name for name in names if wanted in name]


def _known(node: Server) -> list[Any]:
    """The nodes that it knows by their names, itself among them."""
    found = node.client().cluster("nodes")
    return [each for each in found.values() if "handshake" not in each["flags"]]


def _id(node: Server) -> str:
    identity: str = node.command("CLUSTER", "MYID")
    return identity


def _master_port(node: Server) -> int | None:
    if not node.alive:
        return None
    port: int | None = node.client().info("replication").get("master_port")
    return port
