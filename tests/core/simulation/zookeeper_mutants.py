"""The ZooKeeper engine with one mistake at a time, and the properties that may find it."""

from __future__ import annotations

from typing import Final

from weblock._core import table
from weblock._core.acquiring import Acquisition
from weblock._core.holding import Holding
from weblock.stores.zookeeper import wire
from weblock.stores.zookeeper.store import ZooKeeperStore
from weblock.stores.zookeeper.wire import Memory, Wire

from .mutants import Mutant

MUTANTS: Final = (
    # When a lease has ended.
    Mutant(
        "a lease is timed from when another one of its owner was seen",
        wire,
        "_version",
        "lease.born, ",
        "",
        ("P1", "P3", "P7"),
        seed=36,
    ),
    Mutant(
        "a lease is timed from when it was first seen, renewed or not",
        wire,
        "_version",
        ", lease.version)",
        ")",
        ("P1", "P3", "P7"),
        seed=2,
    ),
    Mutant(
        "an ended lease is removed, even if it was renewed meanwhile",
        ZooKeeperStore,
        "_take_turn",
        "grant.delete(key.lease_of(lease.owner), version=lease.version)",
        "grant.delete(key.lease_of(lease.owner))",
        ("P1", "P3", "P7"),
        seed=221,
    ),
    Mutant(
        "the servers' stamps are believed while the holder's session lives",
        Wire,
        "end_the_dead",
        "if isinstance(sign, Exception):",
        "if True:",
        ("P1", "P3", "P7"),
        seed=229,
    ),
    Mutant(
        "a holder without a session is dead, whenever it renewed",
        Wire,
        "end_the_dead",
        " and unchanged >= lease.content.ttl * (1 + 2 * DRIFT)",
        "",
        ("P1", "P3", "P7"),
        seed=50,
    ),
    # What a grant depends on.
    Mutant(
        "a turn is taken without the place",
        ZooKeeperStore,
        "_take_turn",
        "grant.delete(key.path(snapshot.places[0].name))",
        "pass",
        ("P5", "P6", "P9"),
    ),
    Mutant(
        "any waiter takes the turn",
        ZooKeeperStore,
        "_attempt",
        "if position == 0:",
        "if True:",
        ("P5", "P1"),
    ),
    Mutant(
        "limits of holders do not count",
        table,
        "fits",
        "min(claim.limit, _least_limit(grants))",
        "claim.limit",
        ("P1",),
    ),
    # Deadlines of the holder.
    Mutant(
        "a deadline counts from the answer",
        Acquisition,
        "run",
        "Anchor(reply.now, sent)",
        "Anchor(reply.now, runtime.now())",
        ("P7", "P1"),
    ),
    Mutant(
        "a renewed deadline counts from the answer",
        Holding,
        "heard",
        "Anchor(reply.now, sent)",
        "Anchor(reply.now, now)",
        ("P7", "P1"),
    ),
    Mutant(
        "a renewal shortens what an extension has promised",
        ZooKeeperStore,
        "_renew",
        "max(now + ttl, own.until)",
        "now + ttl",
        ("P7", "P1"),
        seed=13,
    ),
    # What is left behind.
    Mutant(
        "a release does not delete",
        ZooKeeperStore,
        "_give_back",
        "client.delete_async(key.lease_of(owner)),",
        "client.get_async(key.lease_of(owner)),",
        ("P4", "P6", "P9", "P10"),
        seed=4,
    ),
    Mutant(
        "a waiter that gives up keeps its place",
        ZooKeeperStore,
        "_give_back",
        "if place.owner == owner]",
        "if False]",
        ("P4", "P6", "P9", "P10"),
        seed=28,
    ),
    Mutant(
        "a waiter that finds no room is forgotten before its place is gone",
        ZooKeeperStore,
        "_stay",
        "await self._give_back(snapshot.key, claim.owner)",
        "self._memory.forget(claim.owner); await self._give_back(snapshot.key, claim.owner)",
        ("P5", "P6", "P9"),
        seed=174,
    ),
    Mutant(
        "a waiter is forgotten with a lease that it did not know of",
        Memory,
        "forget_ended",
        "if owner not in waiting:",
        "if True:",
        ("P5", "P6", "P9"),
        seed=69,
    ),
    # Waiting.
    Mutant(
        "a waiter does not watch",
        ZooKeeperStore,
        "_stay",
        "get(path, watch)",
        "get(path)",
        ("P4", "P10"),
        seed=6,
    ),
    Mutant(
        "a waiter is passed over at once",
        Wire,
        "pass_over_first",
        ">= HANDOFF",
        ">= 0",
        ("P3", "P5"),
        seed=33,
    ),
)
