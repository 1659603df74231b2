"""ZooKeeper's nodes, and leases there that are not exclusive, beside the pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from tests.support.waiting import eventually
from weblock import ConfigurationError
from weblock._core import table
from weblock._core.table import SHARED, Claim, Held, KeyState, Moment
from weblock.stores.zookeeper.nodes import (
    Content,
    Lease,
    Snapshot,
    content_of,
    lease_of,
    name_of_place,
    places_in,
)

from .machines import Machine, starting_machines

Start = Callable[[], Machine]

LIMITS = [1, 1, 2, 3, SHARED]


@pytest.fixture
def machine() -> Iterator[Start]:
    """Machines that lock on one key, each with a clock of its own."""
    with starting_machines() as start:
        yield start


class Crowd:
    """One key, as ZooKeeper has it and as the pure functions do. Callers ask as waiters do, in order."""

    def __init__(self, start: Start, dice: Random) -> None:
        self.dice = dice
        self.machines = [start() for _ in range(3)]
        self.state = KeyState()
        self.claims: dict[str, tuple[Claim, Machine]] = {}
        self.most = 0

    def step(self) -> None:
        """A random operation, which both do; then all waiters ask."""
        holders, known = self.holders, [*self.holders, *self.waiters]
        match self.dice.choice(["come"] * 4 + ["leave"] * 3 + ["again", "beat", "move", "later"]):
            case "come":
                self.come()
            case "leave" if known:
                self.leave(self.dice.choice(known))
            case "again" if known:
                self.ask(self.dice.choice(known), limit=self.dice.choice(LIMITS))
            case "beat" if known:
                self.beat(self.dice.choice(known))
            case "move" if holders:
                self.move(self.dice.choice(holders))
            case "later":
                self.later(self.dice.choice([0.5, 1.0, 3.0]))
            case _:
                self.force()
        self.settle()

    @property
    def holders(self) -> list[str]:
        return [grant.claim.owner for grant in self.state.grants]

    @property
    def waiters(self) -> list[str]:
        return [place.claim.owner for place in self.state.queue]

    def come(self) -> None:
        limit, ttl = self.dice.choice(LIMITS), self.dice.choice([2.0, 5.0, 10.0])
        claim = self.new_claim(ttl, limit)
        self.ask(claim.owner, room=self.dice.choice([0, 1, 9]))

    def ask(self, owner: str, *, room: int = 99, limit: int = 0) -> None:
        claim, machine = self.claims[owner]
        claim = claim._replace(limit=limit or claim.limit)
        step = table.acquire(self.state, self.moment(), claim, room=room)
        self.take(step, machine.take(claim, room=room))

    def leave(self, owner: str) -> None:
        self.take(
            table.release(self.state, self.moment(), owner), self.claims[owner][1].release(owner)
        )

    def beat(self, owner: str) -> None:
        claim, machine = self.claims[owner]
        step = table.refresh(self.state, self.moment(), owner, claim.ttl)
        self.take(step, machine.renew(owner, claim.ttl))

    def move(self, owner: str) -> None:
        claim = self.new_claim(10.0, 1)
        fence = next(
            lease.grant.fence for lease in self.machines[0].snapshot().live if lease.owner == owner
        )
        step = table.transfer(self.state, self.moment(), owner, claim)
        self.take(step, self.claims[claim.owner][1].transfer(owner, claim, fence))

    def force(self) -> None:
        self.take(
            table.force_release(self.state, self.moment()),
            self.dice.choice(self.machines).force_release(),
        )

    def later(self, seconds: float) -> None:
        for machine in self.machines:
            machine.clock += seconds

    def settle(self) -> None:
        """Those ask whose turn it may be; then all processes see what there is, from when they time it."""
        self.state, _ = table.settle(self.state, self.moment())
        new = [each.claim.owner for each in self.state.grants if not each.confirmed]
        for owner in [*new, *self.waiters]:
            self.ask(owner)
        snapshot, *_ = [machine.snapshot() for machine in self.machines]
        assert holders_in(snapshot) == [(g.claim.owner, g.claim.limit) for g in self.state.grants]
        queue = [(place.owner, place.limit) for place in snapshot.places]
        assert queue == [(place.claim.owner, place.claim.limit) for place in self.state.queue]
        self.most = max(self.most, len(self.state.grants))

    def take(self, step: table.Step, answer: Any) -> None:
        self.state = step.state
        assert alike(answer) == alike(step.answer)

    def new_claim(self, ttl: float, limit: int) -> Claim:
        owner = f"owner{len(self.claims)}"
        claim = Claim(owner, "", ttl, f"label of {owner}", limit)
        self.claims[owner] = claim, self.dice.choice(self.machines)
        return claim

    def moment(self) -> Moment:
        return Moment(self.machines[0].clock, 0)


def holders_in(snapshot: Snapshot) -> list[tuple[str, int]]:
    """Those who hold the key, in the order of their fences, and their limits."""
    return [(lease.owner, lease.content.limit) for lease in snapshot.live]


def alike(answer: Any) -> Any:
    """An answer without what only one of them knows."""
    facts = answer._asdict()
    for only in ("ahead", "fence", "confirmed"):
        facts.pop(only, None)
    return type(answer).__name__, facts


def test_random_crowds(machine) -> None:
    """Holders, waiters and answers are those that the pure functions say, whatever the limits."""
    most = 0
    for seed in range(3):
        crowd = Crowd(machine, Random(seed))
        for _ in range(40):
            crowd.step()
        while crowd.holders:
            crowd.leave(crowd.holders[0])
            crowd.settle()
        most = max(most, crowd.most)
    assert most > 2


class TestTurns:
    def test_a_process_that_forgot_what_it_has(self, machine) -> None:
        """A holder that asks again keeps the limit that it came with, also where only the node knows it."""
        holder = machine()
        held = holder.acquire("holder", limit=3)
        holder.engine.memory.leases.clear()
        again = holder.acquire("holder", limit=1)
        assert (again.fence, holders_in(machine().snapshot())) == (held.fence, [("holder", 3)])

    def test_a_newcomer_gets_the_place_of_the_dead(self, machine) -> None:
        """A process that never saw the key finds which of its holders died long ago, and that the rest live."""
        dead, living = machine(), machine()
        dead.take(Claim("dead", "", 0.05, "", 2))
        living.acquire("living", limit=2)
        dead.engine.close()

        def newcomer_gets_it() -> bool:
            newcomer = machine()
            try:
                return isinstance(newcomer.acquire("newcomer", limit=2, room=0), Held)
            finally:
                newcomer.engine.close()

        eventually(newcomer_gets_it)
        assert holders_in(living.snapshot()) == [("living", 2), ("newcomer", 2)]


class TestWatching:
    def test_while_those_who_are_watched_stay_nobody_fits(self) -> None:
        """A waiter watches so many leases that it is told of whatever lets it in, and no more than it must."""
        for limits in crowds():
            for wanted in (1, 2, 3, SHARED):
                snapshot = snapshot_of(limits)
                watched = snapshot.blocking(wanted)
                if snapshot.admits(wanted):
                    continue
                assert not snapshot._replace(live=watched).admits(wanted)
                fewer = [each for each in watched if each is not watched[-1]]
                assert snapshot._replace(live=tuple(fewer)).admits(wanted)


def crowds() -> Iterator[tuple[int, ...]]:
    """The limits of holders, of whom there are no more than each of them allows."""
    for count in range(5):
        for limits in itertools.product((1, 2, 3, 4, SHARED), repeat=count):
            if count <= min(limits, default=SHARED):
                yield limits


def snapshot_of(limits: tuple[int, ...]) -> Snapshot:
    live = tuple(
        Lease(str(number), Content("", "", 10.0, limit), number, 0, 0.0, 0.0, 10.0)
        for number, limit in enumerate(limits, 1)
    )
    key: Any = None
    return Snapshot(key, 0, 0, (), live, (), 10.0)


class TestNodes:
    def test_a_lease_is_read_as_it_was_written(self) -> None:
        """Its fence is the number of the transaction that created it, until it passes to another owner."""
        content = Content("5e", "web-1", 10.0, 3)
        lease = lease_of("lease-a1", content.to_bytes(), Stat())
        assert (lease.owner, lease.content, lease.grant.fence) == ("a1", content, 5)
        moved = content._replace(fence=7, asked=True)
        lease = lease_of("lease-a1", moved.to_bytes(), Stat())
        assert (lease.content, lease.grant.fence) == (moved, 7)

    def test_places_are_in_the_order_of_their_numbers(self) -> None:
        """The name of a place tells its session, its owner and its limit, whatever characters the owner has."""
        waiters = [("a1", 1), ("b-2", 2), ("c3", SHARED)]
        names = [
            f"{name_of_place('5e', Claim(owner, '', 10.0, '', limit))}{9 - index:010}"
            for index, (owner, limit) in enumerate(waiters)
        ]
        places = places_in([*names, "lease-a1"])
        assert [(each.owner, each.limit) for each in places] == waiters[::-1]
        assert [each.name for each in places] == names[::-1]
        assert {each.session for each in places} == {"5e"}

    @pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", b"[1, 2, 3, 4, 5, 6, 7]"])
    def test_what_no_weblock_wrote_is_no_lease(self, data: bytes) -> None:
        """It is shown, and taken for nothing."""
        with pytest.raises(ConfigurationError, match="not a lease of weblock"):
            content_of(data)


class Stat:
    """What ZooKeeper says of a node."""

    czxid, version, ctime, mtime = 5, 0, 0, 0
