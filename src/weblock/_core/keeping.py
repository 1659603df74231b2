"""The keeper: it keeps alive what this process has in one engine.

Every lease and every place in a queue lives by heartbeats. One keeper for each engine sends them,
in batches, in the background and on a client of its own, so that neither a handler that blocks its
event loop nor one that computes can delay them. It also pays debts: what a cancelled caller could
not give back itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol
from weakref import ref

from ..errors import EngineUnavailable
from ..events import Forgotten
from ..keys import unqualified
from .holding import Hands, Holding, Terms
from .ports import Ask, Pulse, Reply, Runtime, Store
from .table import PLACE

NAP: Final = 1.0
"""Seconds after which an idle keeper checks again what it has to keep.

A lease that is renewed later than that need not wake it: a section that ends before costs no switch
of threads.
"""

LINGER: Final = 60.0
"""Seconds without anything to keep after which a keeper sleeps until it is woken."""

PORTION: Final = 200
"""Heartbeats in one request, at most: an engine that is busy with them serves nobody else."""

LATEST: Final = 5.0
"""Seconds after which an abandoned request can no longer reach the engine, beyond two ttl."""

Spawn = Callable[[], bool]
Report = Callable[[str], None]


class Kept(Protocol):
    """What lives by heartbeats."""

    key: str
    owner: str
    control: object
    """The flow of control that holds or waits."""
    due: float

    @property
    def terms(self) -> Terms: ...

    @property
    def slack(self) -> float:
        """Seconds by which a heartbeat may come early, to share its batch."""

    @property
    def over(self) -> bool: ...

    def pulse(self, now: float) -> Pulse | None: ...

    def heard(self, reply: Reply | EngineUnavailable, sent: float, now: float) -> None: ...

    def wake(self, locker: object) -> None:
        """Have a caller that waits by ``locker`` look again at what it waits for."""

    def close(self) -> float:
        """Notify the holder or waiter of the end; return for how long to reject its owner."""


class Debt:
    """Something to give back to the engine, tried until it answers or forgets by itself."""

    def __init__(self, key: str, owner: str, void: float, *, now: float, until: float) -> None:
        self.key = key
        self.owner = owner
        self.void = void
        self.until = until
        self.due = now


class Stake(ref[Hands[Holding]]):
    """What an acquisition may have in the engine: noted before it asks, until it has nothing.

    If its hands cease to exist before that, nothing is left that could give back what it has: its
    caller was interrupted between two lines, or has forgotten it. A callback that no signal can
    interrupt then notifies the keeper.
    """

    __slots__ = ("key", "owner", "ttl")

    key: str
    owner: str
    ttl: float


class Keeper:
    """Keeps the leases and places of one engine in one process.

    ``connect`` gives it an engine's store for ``runtime``. ``spawn`` starts ``run`` in the
    background, and returns whether it could; if not, it is tried again when there is something to
    keep. All other methods may be called from any thread.
    """

    def __init__(
        self,
        runtime: Runtime,
        connect: Callable[[Runtime], Store],
        spawn: Spawn,
        *,
        report_forgotten: Report = lambda _message: None,
        disconnect: Report = lambda _owner: None,
    ) -> None:
        self._runtime = runtime
        self._connect = connect
        self._spawn = spawn
        self._report_forgotten = report_forgotten
        self._disconnect = disconnect
        self.stakes: dict[str, Stake] = {}
        """By owner. A caller that has given back what it had removes its stake."""
        self._kept: dict[str, Kept] = {}
        self._debts: dict[str, Debt] = {}
        self.holdings: dict[str, Holding] = {}
        """The exclusive leases that this process has, by key."""
        self.together: dict[str, dict[str, Holding]] = {}
        """Its leases that others may have, too, by key and owner."""
        self._bell = runtime.bell()
        self._ring: Callable[[Any], None] = self._bell.ring
        """Rings with a message, or with a stake whose hands are gone."""
        self._wakes_at = float("inf")
        self._attended = False
        """Whether something was to be kept since the last nap."""
        self._naps = 0
        """How many naps in a row there was nothing to keep."""
        self.over = False
        """Whether it was closed: what is kept here from now on would not live."""
        self._ends = False
        self._running = False
        self._store: Store | None = None

    @property
    def idle(self) -> bool:
        return not self._kept and not self._debts

    def keep(self, kept: Kept) -> None:
        self._kept[kept.owner] = kept
        self._attend(kept.due)

    def keep_holding(self, holding: Holding) -> None:
        self._kept[holding.owner] = holding
        if holding.terms.limit == 1:
            self.holdings[holding.key] = holding
        else:
            self._add_together(holding)
        self._attended = True  # And no more is to be done if it wakes in time anyway.
        if holding.due < self._wakes_at or not self._running:
            self._attend(holding.due)

    def drop(self, kept: Kept) -> None:
        if self._kept.get(kept.owner) is kept:
            self._kept.pop(kept.owner, None)

    def drop_holding(self, holding: Holding) -> None:
        if self._kept.get(holding.owner) is holding:
            self._kept.pop(holding.owner, None)
        if self.holdings.get(holding.key) is holding:
            self.holdings.pop(holding.key, None)
        elif self.together:
            self._drop_together(holding)

    def together_on(self, key: str) -> Sequence[Holding]:
        """Return the leases of a key that this process has, where others may have it, too."""
        return list(self.together.get(key, {}).values())

    def waiting_for(self, key: str) -> Sequence[Kept]:
        """Return the callers of this process that have a place in the queue of a key."""
        kept = list(self._kept.values())
        return [each for each in kept if each.key == key and not isinstance(each, Holding)]

    def stake(self, hands: Hands[Any], key: str, owner: str, ttl: float) -> bool:
        """Give back whatever ``owner`` has as soon as no code refers to ``hands`` any more.

        Return whether something runs that would do so, and would renew what it gets.
        """
        stake = Stake(hands, self._ring)
        stake.key, stake.owner, stake.ttl = key, owner, ttl
        self.stakes[owner] = stake
        if not self._running:
            self._attend(float("inf"))
        return self._running

    def owe(self, debt: Debt) -> None:
        """Give back in the background what its caller cannot wait to give back."""
        self._drop_owner(debt.owner)
        self._debts[debt.owner] = debt
        self.stakes.pop(debt.owner, None)
        self._attend(debt.due)

    def wake(self, locker: object) -> None:
        """Wake the callers that wait by ``locker``, which has been closed: it was not the only one."""
        for each in list(self._kept.values()):
            each.wake(locker)

    def close(self) -> None:
        """End the loop. Holders and waiters are notified, and debts are paid first."""
        self.over = True
        now = self._runtime.now()
        for each in list(self._kept.values()):
            self.drop_holding(each) if isinstance(each, Holding) else self.drop(each)
            self.owe(Debt(each.key, each.owner, each.close(), now=now, until=now))
        for stake in list(self.stakes.values()):
            # Its request is under way, or its release: nobody pays what these owe later.
            void = 2 * stake.ttl + LATEST
            self.owe(Debt(stake.key, stake.owner, void, now=now, until=now))
        self._ends = True
        self._bell.ring(Ask())

    def after_fork(self) -> None:
        """End the leases here in a child, which has another keeper: they are its parent's.

        What ends in the child rings a new bell. Python 3.13 crashes if a queue has a thread wait
        that only the parent has, unless it was told of the fork.
        """
        self._bell = self._runtime.bell()
        self._ring = self._bell.ring
        self.stakes.clear()
        for each in list(self._kept.values()):
            if isinstance(each, Holding):
                each.after_fork()

    async def run(self) -> None:
        """Run the loop; ``spawn`` runs it again if it fails."""
        store = self._store = self._store or self._connect(self._runtime)
        hasty = store.hasty()
        while not self._ends:
            # Anything that is added from here on rings, so the check below misses nothing.
            asked_for, self._wakes_at = self._wakes_at, float("inf")
            await self._beat(store)
            now = self._runtime.now()
            # A portion at a time: while an engine is slow to take them, leases need renewal.
            due = [each for each in list(self._debts.values()) if each.due <= now]
            await self._pay(due[:PORTION], hasty)
            wakes_at = self._next_due()
            # A time that was asked for is kept, though its asker may have gone by now: where a key
            # goes from hand to hand, the next one relies on it instead of ringing again.
            if self._runtime.now() < asked_for:
                wakes_at = min(wakes_at, asked_for)
            self._wakes_at = wakes_at
            heard: object = await self._bell.heard(_seconds(wakes_at - self._runtime.now()))
            if isinstance(heard, Stake):
                self._let_go(heard)
        # Nothing else is kept any more, so that patience delays nobody.
        left = list(self._debts.values())
        while left:
            left = left[await self._pay(left[:PORTION], store) :]

    def _attend(self, due: float) -> None:
        self._attended = True
        if not self._running:
            started = False
            try:
                self._running = True
                started = self._spawn()
            finally:  # An interrupt may come before it runs: then the next caller tries again.
                self._running = started
        # It looks at everything once it has begun, also if it was thought not to run.
        if self._store is not None and due < self._wakes_at:
            self._wakes_at = due
            self._bell.ring(Ask())

    # Any thread may change it, without a mutex, which a finalizer might wait for. What one thread adds to
    # a part that another has just found empty and removes is added again, by one of them.

    def _add_together(self, holding: Holding) -> None:
        added: dict[str, Holding] = {}
        while self.together.get(holding.key) is not added:
            added = self.together.setdefault(holding.key, {})
            added[holding.owner] = holding

    def _drop_together(self, holding: Holding) -> None:
        left = self.together.get(holding.key)
        if left is None or left.pop(holding.owner, None) is None or left:
            return
        for added in list((self.together.pop(holding.key, None) or {}).values()):
            self._add_together(added)

    def _drop_owner(self, owner: str) -> None:
        kept = self._kept.get(owner)
        if isinstance(kept, Holding):
            self.drop_holding(kept)
        elif kept:
            self.drop(kept)

    def _let_go(self, stake: Stake) -> None:
        """Give back what no code refers to any more; a lease without renewal ends by itself."""
        if self.stakes.pop(stake.owner, None) is not stake:
            return
        self._disconnect(stake.owner)
        kept, now, void = self._kept.get(stake.owner), self._runtime.now(), 2 * stake.ttl + LATEST
        if isinstance(kept, Holding):
            if not kept.forgotten:
                return
            void = kept.void
            if Forgotten in kept.observers.wanted:
                kept.observers.tell(Forgotten(**kept.about(), held_for=kept.held_for()))
            self._report_forgotten(
                f"the lease of {unqualified(kept.key)!r:.200} was not released, and nobody refers to"
                " it any more: release it, or use a with block"
            )
        self.owe(Debt(stake.key, stake.owner, void, now=now, until=now + max(stake.ttl, PLACE)))

    def _next_due(self) -> float:
        dues = [each.due for each in list(self._kept.values())]
        dues += [debt.due for debt in list(self._debts.values())]
        if dues:
            return min(dues)
        self._naps = 0 if self._attended else self._naps + 1
        self._attended = False
        return self._runtime.now() + NAP if self._naps * NAP < LINGER else float("inf")

    async def _pay(self, debts: Sequence[Debt], store: Store) -> int:
        """Pay debts, as many as the engine takes at once; return how many these were."""
        if not debts:
            return 0
        failures = await store.release_some([(each.key, each.owner, each.void) for each in debts])
        now = self._runtime.now()
        for debt, failure in zip(debts, failures, strict=False):
            if failure and now < debt.until:
                debt.due = now + 0.1 + 0.4 * self._runtime.jitter()
            else:
                self._debts.pop(debt.owner, None)
        return len(failures)

    async def _beat(self, store: Store) -> None:
        """Send the heartbeats that are due: leases first, because most places last longer.

        Between two portions, a lease that has become due meanwhile comes before the rest.
        """
        beating = self._beating()
        for start in range(0, len(beating), PORTION):
            if start and self._a_lease_is_due():
                return  # What was not sent is still due.
            await self._beat_portion(store, beating[start : start + PORTION])

    def _beating(self) -> list[tuple[Kept, Pulse]]:
        now = self._runtime.now()
        leases: list[tuple[Kept, Pulse]] = []
        places: list[tuple[Kept, Pulse]] = []
        for each in list(self._kept.values()):
            if each.due <= now + each.slack:
                if pulse := each.pulse(now):
                    (leases if isinstance(each, Holding) else places).append((each, pulse))
                self._drop_if_over(each)
        return leases + places

    def _a_lease_is_due(self) -> bool:
        now = self._runtime.now()
        kept = list(self._kept.values())
        return any(each.due <= now for each in kept if isinstance(each, Holding))

    async def _beat_portion(self, store: Store, portion: Sequence[tuple[Kept, Pulse]]) -> None:
        sent = self._runtime.now()
        replies = await self._refresh(store, [pulse for _, pulse in portion])
        now = self._runtime.now()
        for (each, _), reply in zip(portion, replies, strict=True):
            if self._kept.get(each.owner) is each:
                self._hear(each, reply, sent, now)

    async def _refresh(
        self, store: Store, pulses: Sequence[Pulse]
    ) -> Sequence[Reply | EngineUnavailable]:
        try:
            return await store.refresh(pulses)
        except EngineUnavailable as error:
            return [error] * len(pulses)

    def _hear(self, each: Kept, reply: Reply | EngineUnavailable, sent: float, now: float) -> None:
        each.heard(reply, sent, now)
        self._drop_if_over(each)

    def _drop_if_over(self, each: Kept) -> None:
        if not each.over:
            return
        if isinstance(each, Holding):
            self.drop_holding(each)
        else:
            self.drop(each)


def _seconds(timeout: float) -> float | None:
    return None if timeout == float("inf") else max(0.0, timeout)
