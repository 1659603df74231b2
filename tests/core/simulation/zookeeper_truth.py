"""What is so of an ensemble, and what must hold of it; each property has the name that it has elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from weblock._core.holding import DRIFT
from weblock._core.keeping import BEAT
from weblock._core.ports import Reply
from weblock._core.table import PLACE, Claim, Grant, KeyState, Place, Step, fits
from weblock.stores.zookeeper.nodes import LEASE, content_of, places_in

from .engine import Change, Refresh, Request
from .process import Process
from .properties import (
    SLACK,
    Bounded,
    Cancelled,
    DeadlineFirst,
    Fences,
    FirstComeFirstServed,
    Honest,
    Live,
    Mutex,
    NoForeignEffect,
    NoLeak,
    Property,
    ToldInTime,
    WakeUp,
)
from .swarm import Swarm
from .truth import Truth
from .world import World
from .zookeeper_nodes import Changes, Forget, Writing
from .zookeeper_servers import Ensemble

KEYS: Final = "/weblock/keys/"

ROUNDS: Final = 64
"""How many messages there are in a call: several rounds, each by way of the leader."""

FASTER: Final = 1 + DRIFT / 2
"""How fast the fastest clock of a client runs."""


class Transaction(NamedTuple):
    """What changed a key, in the place of the request that it is elsewhere."""

    key: str
    what: Writing
    by: str
    """The process whose session it was; nothing where a session ended."""


class Ledger:
    """All keys, as the engine's functions would have them; kept from what is committed."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.states: dict[str, KeyState] = {}
        self.changed_at: dict[str, float] = {}
        """When a key's holders, or its first waiter, were others before."""
        self.truth: ZooKeeperTruth
        self._ensemble = ensemble
        self._grants: dict[str, tuple[int, Grant]] = {}

    def committed(self, what: Writing, changes: Changes, client: Any) -> None:
        paths = [path.removeprefix(KEYS) for path in changes if path.startswith(KEYS)]
        for key in sorted({path.partition("/")[0] for path in paths}):
            self._moved(Transaction(key, what, client.name if client else ""), changes)

    def _moved(self, transaction: Transaction, changes: Changes) -> None:
        key = transaction.key
        before = self.states.get(key) or KeyState()
        after = self._state(key, before)
        if after.blank:
            self.states.pop(key, None)
        else:
            self.states[key] = after
        if (after.grants, after.queue[:1]) != (before.grants, before.queue[:1]):
            self.changed_at[key] = self._ensemble.world.now
        if (after.grants, after.queue) == (before.grants, before.queue):
            return
        step: Any = Step(after, None)  # type: ignore[arg-type]
        owner = self._owner(transaction, changes)
        request: Any = transaction
        self.truth.applied(Change(request, owner, before, step, self._ensemble.now()))

    def _owner(self, transaction: Transaction, changes: Changes) -> str:
        """For whom it was: those whose node was made or written, or who took back their own."""
        inside = [path for path in changes if path.startswith(f"{KEYS}{transaction.key}/")]
        for path in inside:
            if changes[path] is not None:
                return owner_of(path)
        owners = [owner_of(path) for path in inside]
        if len(owners) == 1 and not isinstance(transaction.what, Forget):
            attempt = self.truth.by_owner[owners[0]]
            if attempt.client.process.name == transaction.by:
                return owners[0]
        return ""

    def _state(self, key: str, before: KeyState) -> KeyState:
        tree = self._ensemble.tree
        node = tree.get(f"{KEYS}{key}")
        names = node.children if node else ()
        grants = [self._grant(f"{KEYS}{key}/{name}") for name in names if name.startswith(LEASE)]
        places = [Claim(each.owner, "", 0.0, "", each.limit) for each in places_in(names)]
        fresh_grants = tuple(sorted(grants, key=lambda grant: grant.fence))
        queue = {claim.owner: Place(claim, float("inf")) for claim in places}
        if len(queue) < len(places):
            self._ensemble.world.fail("P5 fifo", f"an owner of {key} is queued twice")
        return KeyState(
            max([before.fence, *(grant.fence for grant in grants)]),
            before.grants if fresh_grants == before.grants else fresh_grants,
            before.places if tuple(queue.values()) == before.queue else queue,
        )

    def _grant(self, path: str) -> Grant:
        """A lease. Nobody takes it before the fastest of clocks has counted its ttl."""
        node = self._ensemble.tree[path]
        known = self._grants.get(path)
        if known and known[0] == node.mzxid:
            return known[1]
        content, now = content_of(node.data), self._ensemble.now()
        since = known[1].since if known and known[1].fence == node.czxid else now
        claim = Claim(owner_of(path), "", 0.0, "", content.limit)
        grant = Grant(claim, node.czxid, since, now + content.ttl / FASTER, confirmed=True)
        self._grants[path] = node.mzxid, grant
        return grant


def owner_of(path: str) -> str:
    name = path.rpartition("/")[2]
    return name.removeprefix(LEASE) if name.startswith(LEASE) else places_in([name])[0].owner


def in_calls(truth: Truth) -> float:
    """How long a call may take where nothing fails."""
    return ROUNDS * truth.swarm.delay * 1.2 + SLACK


class ZooKeeperTruth(Truth):
    """Everything that is so. What fails costs a client its connection, and perhaps its session."""

    def __init__(
        self, world: World, swarm: Swarm, ensemble: Ensemble, session_timeout: float
    ) -> None:
        super().__init__(world, swarm, ensemble)  # type: ignore[arg-type]
        self.ensemble = ensemble
        self.ledger = ensemble.ledger = Ledger(ensemble)
        self.ledger.truth = self
        reconnecting = 2 * swarm.op_timeout + 2.0
        self._aftermath = session_timeout + reconnecting
        self._known: dict[int, tuple[Refresh, frozenset[str]]] = {}

    def disturb(self, what: str, lasting: float) -> None:
        super().disturb(what, lasting + self._aftermath)

    def sent(self, process: Process, request: Request) -> None:
        if isinstance(request, Refresh):
            owners = frozenset(pulse.owner for pulse in request.pulses) & self.served
            self._known[id(request)] = request, owners
        super().sent(process, request)

    def answered(self, request: Request, replies: list[Reply]) -> None:
        super().answered(request, replies)
        self._known.pop(id(request), None)

    def _refuted(self, owner: str, now: float) -> None:
        """A heartbeat found nothing. If its owner had its lease when it was sent, that is lost."""
        asked = [owners for _, owners in self._known.values() if owner in owners]
        for belief in self.beliefs:
            if belief.holding.owner == owner and asked:
                belief.refuted_at = self.world.now
                self.sometimes("renewal answered Gone")


class Overtakes(NoForeignEffect):
    """The same; and a waiter that lives is not passed over, if nothing has failed since it came."""

    def _may_leave(self, change: Change, place: Place) -> bool:
        attempt = self.truth.by_owner[place.claim.owner]
        return (
            isinstance(change.request.what, Forget)  # type: ignore[union-attr]
            or any(granted.claim.owner == place.claim.owner for granted in change.granted)
            or not self.truth.is_asking(place.claim.owner)
            or self.truth.disturbed_until >= attempt.started_at
        )


class InOrder(FirstComeFirstServed):
    """The same: while an earlier place is there, nobody gets in by a later one."""

    def _was_present(self, change: Change, place: Place) -> bool:
        return True


class Waking(WakeUp):
    """A key that the first waiter may have is its own in bounded time, and at once if nothing ever failed."""

    truth: ZooKeeperTruth

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self.round_trips = in_calls(truth)
        self.heartbeat = BEAT * 1.01 + self.round_trips

    def applied(self, change: Change) -> None:
        """The first waiter takes its turn itself, a little later."""

    def _free(self, key: str, state: KeyState, live: tuple[Grant, ...], now: float) -> None:
        if not fits(state.queue[0].claim, live):
            return
        owner = state.queue[0].claim.owner
        if not self.truth.is_asking(owner):
            return
        attempt = self.truth.by_owner[owner]
        since = max(self.truth.ledger.changed_at[key], attempt.started_at)
        for ended in state.grants:  # It has watched for a ttl, perhaps since it came.
            if self.engine.now() >= ended.until:
                lasts = (ended.until - ended.since) * FASTER
                longest = max(lasts, attempt.plan.terms.ttl)
                since = max(since, ended.until, attempt.started_at + longest * FASTER**2)
        at_once = not state.grants and self.truth.disturbed_until < attempt.started_at
        bound = self.round_trips if at_once else self.heartbeat
        if self.undisturbed_for(since) > bound:
            self.fail(f"{key} is free, and {attempt.name} waits for it in vain: {state}")


class LeavesNothing(Cancelled):
    """The same, of nodes."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self.bound += in_calls(truth)


class Before(DeadlineFirst):
    """The same. A renewal that comes late, but before anybody has taken the lease away, wins."""

    def applied(self, change: Change) -> None: ...


class EnsembleLive(Live):
    """The same as of one server, if more slowly."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self.round_trips = in_calls(truth)


class NothingRemembered(NoLeak):
    """The same; and a process remembers none of its owners when they have gone."""

    def at_end(self) -> None:
        for key, state in self.engine.states.items():
            left = {
                owner: each for owner, each in state.places.items() if not self._given_up(owner)
            }
            self.engine.states[key] = state._replace(places=left)
        super().at_end()
        for client in self.truth.clients:
            if client.process.dead or client.keeper.is_closed:
                continue
            memory = client.engine.memory  # type: ignore[attr-defined]
            if left := {*memory.leases, *memory.owners}:
                self.fail(f"{left} are remembered in {client.process.name}")

    def _given_up(self, owner: str) -> bool:
        """Whether its process tried to take back a place for as long as it does, and got no answer.

        It removes the place when it next has to do with the key, and others pass it over.
        """
        attempt = self.truth.by_owner[owner]
        ended_at = self.truth.world.now if attempt.ended_at is None else attempt.ended_at
        return self.truth.disturbed_until > ended_at + max(attempt.plan.terms.ttl, PLACE)


PROPERTIES: Final[Sequence[type[Property]]] = (
    Mutex,
    Fences,
    Overtakes,
    Waking,
    InOrder,
    LeavesNothing,
    Before,
    ToldInTime,
    EnsembleLive,
    NothingRemembered,
    Honest,
    Bounded,
)
