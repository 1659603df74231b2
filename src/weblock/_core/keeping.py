"""Renew leases, and keep places in queues, in the background.

A lease, and a place in a queue, expires unless a heartbeat renews it. Each process runs one ``Keeper``
for each engine. The keeper

- sends the heartbeats that are due, up to ``PORTION`` of them in one request, those of leases first;
- passes the answers to the ``Holding`` or ``Waiter``, which reports a loss, or notifies the waiter;
- retries releases that their callers could not complete (``PendingRelease``);
- releases what no code refers to any more (``OrphanWatch``).

The keeper runs in its own thread and uses its own connection. A handler that blocks the event loop, or
that computes for a long time, therefore cannot delay a renewal.

A ``Waiter`` is a caller's place in the queue of a key:

1. The engine has answered that the caller is in the queue. The caller makes a ``Waiter``, which the
   keeper keeps, and waits for its notification.
2. The keeper sends a heartbeat for each place about once in ``BEAT`` seconds. The first waiter's
   comes when the lease before it should end, so an expired lease is passed on in time.
3. The answer to a heartbeat stays in the place. If it says anything but that the caller still waits, the
   keeper notifies the caller, as the engine should have done.

A lost notification therefore costs one heartbeat interval. A place without heartbeats lapses. That
happens to a waiter whose wait is over and whose task or thread is blocked: it might still continue
and release by itself, so nothing else does so for it.

Callers change what is kept from any thread, and from finalizers, which may run in the middle of any
line. So there is no mutex: each change is one operation on a dictionary, and the loop reads copies. A
change that must not wait until the loop wakes up by itself puts a message into its mailbox afterwards.
So none is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import ref

from ..errors import EngineUnavailable
from ..events import Forgotten
from ..keys import unqualified
from .holding import Anchor, Holding, Holdings, Terms
from .ports import CheckAgain, Granted, Mailbox, Pulse, Reply, Runtime, Store
from .table import PLACE, Claim, Held, Waiting

NAP: Final = 1.0
"""Seconds after which an idle keeper checks again what it has to keep.

A lease that is renewed later than that need not wake it: a section that ends before costs no switch
of threads.
"""

LINGER: Final = 60.0
"""Seconds without anything to keep after which a keeper sleeps until it is woken."""

PORTION: Final = 200
"""Heartbeats in one request, at most: an engine that is busy with them serves nobody else."""

INFINITE: Final = float("inf")

Spawn = Callable[[], bool]
Report = Callable[[str], None]


BEAT: Final = 1.0
"""Seconds between a waiter's heartbeats, at most."""

GRACE: Final = 0.01
"""Seconds after a lease's end at which the first waiter asks whether it has ended."""

PARTS: Final = 64

LATE: Final = 0.1
"""Seconds after the end of its wait at which a waiter can still take its turn.

An event loop that was blocked, or a thread that got no processor, may find a turn that came in time.
"""

LATEST: Final = 5.0
"""Seconds after which an abandoned request can no longer reach the engine, beyond two ttl."""


class Waiter:
    """A place in the queue of a key, as its waiter has it. The keeper sends its heartbeats."""

    slack = 0.25
    over = False
    was_given_back = False
    """Whether the keeper gives back what the waiter has: its caller need not."""

    def __init__(
        self,
        key: str,
        claim: Claim,
        terms: Terms,
        *,
        runtime: Runtime,
        mailbox: Mailbox,
        locker: object,
        control: object,
        give_up_at: float | None,
    ) -> None:
        self.key = key
        self.owner = claim.owner
        self.terms = terms
        self.locker = locker
        """What the caller waits by: its waiters end when it is closed."""
        self.control = control
        """The flow of control that waits."""
        self.due = 0.0
        self.waiting: Waiting
        """The latest answer that the caller waits, and its anchor."""
        self.anchor: Anchor
        self._first: tuple[float, int] | None = None
        """When it first had a position in the queue, and which one."""
        self._runtime = runtime
        self._mailbox = mailbox
        self.give_up_at = give_up_at
        """When the wait ends; ``None`` is never."""

    @property
    def deaf(self) -> bool:
        """Whether its caller can never continue: its event loop has been closed."""
        return self._mailbox.deaf

    @property
    def rest(self) -> float:
        """How long the lease before it has left: the one that ends first."""
        return self.waiting.until - self.anchor.engine

    def waits(self, waiting: Waiting, anchor: Anchor) -> None:
        self.waiting, self.anchor = waiting, anchor
        if (
            self._first is None or waiting.position > self._first[1]
        ):  # Later, in a queue that was lost.
            self._first = anchor.local, waiting.position
        pause = BEAT * (0.75 + self._runtime.jitter() / 4)
        if waiting.position == 0:
            pause = min(pause, max(0.0, self.rest) + GRACE)
        self.due = self._runtime.now() + pause

    def until_its_turn(self, rest: float) -> float:
        """Return the seconds until its turn at the pace that was seen; ``rest`` if nothing has moved."""
        since, first = self._first or (0.0, 0)
        position = self.waiting.position
        if position >= first:
            return rest
        return (self.anchor.local - since) / (first - position) * (position + 1)

    def wake(self) -> None:
        """Have the caller look again at what it waits for."""
        self._mailbox.put(CheckAgain())

    def close(self) -> float:
        """Notify the caller of the end; return for how long to reject its owner."""
        self.over = self.was_given_back = True
        self.wake()
        return 2 * self.terms.ttl + LATEST  # A request may be under way.

    def pulse(self, now: float) -> Pulse | None:
        if self.give_up_at is not None and now > self.give_up_at + LATE:
            self.over = True
            return None
        return Pulse(self.key, self.owner, self.terms.first_ttl, waits=True)

    def heard(self, reply: Reply | EngineUnavailable, sent: float, now: float) -> None:
        """Process the answer to a heartbeat: still waiting, or a reason to notify the caller."""
        self.due = now + BEAT
        if isinstance(reply, EngineUnavailable):
            self._mailbox.put(CheckAgain())
            return
        self.anchor = Anchor(reply.now, sent)
        match reply.answer:
            case Waiting():
                self.waits(reply.answer, self.anchor)
            case Held(fence, until):
                self._mailbox.put(Granted(fence, until))
            case _:
                self._mailbox.put(CheckAgain())


Kept = Holding | Waiter
"""What lives by heartbeats."""


@dataclass(slots=True)
class PendingRelease:
    """Something to give back to the engine, tried until it answers or forgets by itself."""

    key: str
    owner: str
    void: float
    due: float
    until: float


class OrphanWatch(ref[Holdings[Holding]]):
    """What an acquisition may have in the engine: noted before it asks, until it has nothing.

    If its holdings cease to exist before that, nothing is left that could give back what it has: its
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
        self.watches: dict[str, OrphanWatch] = {}
        """By owner. A caller that has given back what it had removes its watch."""
        self._kept: dict[str, Kept] = {}
        self._pending: dict[str, PendingRelease] = {}
        self.holdings: dict[str, Holding] = {}
        """The exclusive leases that this process has, by key."""
        self.has_shared = False
        """Whether it has ever had a lease that others may have, too."""
        self._shared: list[dict[str, Holding]] = [{} for _ in range(PARTS)]
        """These leases by owner, in parts by their keys: to find those of a key, few are looked through."""
        self._mailbox = runtime.mailbox()
        self._put: Callable[[Any], None] = self._mailbox.put
        """Puts a message into the mailbox, or a watch whose holdings are gone."""
        self._wakes_at = INFINITE
        self._attended = False
        """Whether something was to be kept since the last nap."""
        self._naps = 0
        """How many naps in a row there was nothing to keep."""
        self.is_closed = False
        """Whether it was closed: what is kept here from now on would not live."""
        self._ends = False
        self._running = False
        self._store: Store | None = None

    @property
    def idle(self) -> bool:
        return not self._kept and not self._pending

    def keep(self, place: Waiter) -> None:
        self._kept[place.owner] = place
        self._attend(place.due)

    def keep_holding(self, holding: Holding) -> None:
        self._kept[holding.owner] = holding
        if holding.terms.limit == 1:
            self.holdings[holding.key] = holding
        else:
            self.has_shared = True
            self._shared[hash(holding.key) % PARTS][holding.owner] = holding
        self._attended = True  # And no more is to be done if it wakes in time anyway.
        if holding.due < self._wakes_at or not self._running:
            self._attend(holding.due)

    def drop(self, kept: Kept) -> None:
        if isinstance(kept, Holding):
            self.drop_holding(kept)
        elif self._kept.get(kept.owner) is kept:
            self._kept.pop(kept.owner, None)

    def drop_holding(self, holding: Holding) -> None:
        if self._kept.get(holding.owner) is holding:
            self._kept.pop(holding.owner, None)
        if self.holdings.get(holding.key) is holding:
            self.holdings.pop(holding.key, None)
        elif self.has_shared:
            self._shared[hash(holding.key) % PARTS].pop(holding.owner, None)

    def shared_on(self, key: str) -> Sequence[Holding]:
        """Return the leases of a key that this process has, where others may have it, too."""
        part = self._shared[hash(key) % PARTS]
        return [each for each in list(part.values()) if each.key == key]

    def waiting_for(self, key: str) -> Sequence[Waiter]:
        kept = list(self._kept.values())
        return [each for each in kept if isinstance(each, Waiter) and each.key == key]

    def watch(self, holdings: Holdings[Any], key: str, owner: str, ttl: float) -> bool:
        """Give back whatever ``owner`` has as soon as no code refers to ``holdings`` any more.

        Return whether something runs that would do so, and would renew what it gets.
        """
        watch = OrphanWatch(holdings, self._put)
        watch.key, watch.owner, watch.ttl = key, owner, ttl
        self.watches[owner] = watch
        if not self._running:
            self._attend(INFINITE)
        return self._running

    def release_later(self, key: str, owner: str, ttl: float, void: float) -> None:
        now = self._runtime.now()
        # Of a keeper that is closed, each release is tried once.
        until = now if self.is_closed else now + max(ttl, PLACE)
        if kept := self._kept.get(owner):
            self.drop(kept)
        self._pending[owner] = PendingRelease(key, owner, void, due=now, until=until)
        self.watches.pop(owner, None)
        self._attend(now)

    def wake(self, locker: object) -> None:
        """Wake the callers that wait by ``locker``, which has been closed: it was not the only one."""
        for each in list(self._kept.values()):
            if isinstance(each, Waiter) and each.locker is locker:
                each.wake()

    def close(self) -> None:
        """End the loop. Holders and waiters are notified, and pending releases come first."""
        self.is_closed = True
        for each in list(self._kept.values()):
            self.drop(each)
            self.release_later(each.key, each.owner, each.terms.ttl, each.close())
        for watch in list(self.watches.values()):
            # Its request is under way, or its release: later, nothing would release what these get.
            self.release_later(watch.key, watch.owner, watch.ttl, 2 * watch.ttl + LATEST)
        self._ends = True
        self._mailbox.put(CheckAgain())

    def after_fork(self) -> None:
        """End the leases here in a child, which has another keeper: they are its parent's.

        What ends in the child goes into a new mailbox. Python 3.13 crashes if a queue has a thread wait
        that only the parent has, unless it was told of the fork.
        """
        self._mailbox = self._runtime.mailbox()
        self._put = self._mailbox.put
        self.watches.clear()
        for each in list(self._kept.values()):
            if isinstance(each, Holding):
                each.after_fork()

    async def run(self) -> None:
        """Run the loop; ``spawn`` runs it again if it fails."""
        store = self._store = self._store or self._connect(self._runtime)
        impatient = store.impatient()
        while not self._ends:
            # Anything that is added from here on puts a message there, so the check below misses nothing.
            asked_for, self._wakes_at = self._wakes_at, INFINITE
            await self._beat(store)
            now = self._runtime.now()
            # A portion at a time: while an engine is slow to take them, leases need renewal.
            due = [each for each in list(self._pending.values()) if each.due <= now]
            await self._release_some(due[:PORTION], impatient)
            dues = [each.due for each in list(self._kept.values())]
            dues += [release.due for release in list(self._pending.values())]
            if dues:
                wakes_at = min(dues)
            else:
                self._naps = 0 if self._attended else self._naps + 1
                self._attended = False
                wakes_at = self._runtime.now() + NAP if self._naps * NAP < LINGER else INFINITE
            # Also if the lease that asked for this time has gone: a key that passes quickly between
            # callers would otherwise wake the keeper for each of them.
            if self._runtime.now() < asked_for:
                wakes_at = min(wakes_at, asked_for)
            self._wakes_at = wakes_at
            left = None if wakes_at == INFINITE else max(0.0, wakes_at - self._runtime.now())
            heard: object = await self._mailbox.heard(left)
            if isinstance(heard, OrphanWatch):
                self._let_go(heard)
        # Nothing else is kept any more, so that patience delays nobody.
        releases = list(self._pending.values())
        while releases:
            releases = releases[await self._release_some(releases[:PORTION], store) :]

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
            self._mailbox.put(CheckAgain())

    def _let_go(self, watch: OrphanWatch) -> None:
        """Give back what no code refers to any more; a lease without renewal ends by itself."""
        if self.watches.pop(watch.owner, None) is not watch:
            return
        self._disconnect(watch.owner)
        kept, void = self._kept.get(watch.owner), 2 * watch.ttl + LATEST
        if isinstance(kept, Holding):
            if kept.over or not kept.terms.renew:
                return
            void = kept.void
            kept.tell(Forgotten, held_for=kept.held_for())
            self._report_forgotten(
                f"the lease of {unqualified(kept.key)!r:.200} was not released, and is no longer"
                " referenced: call release(), or use a with block [weblock.forgotten]"
            )
        self.release_later(watch.key, watch.owner, watch.ttl, void)

    async def _release_some(self, releases: Sequence[PendingRelease], store: Store) -> int:
        """Release as many as the engine takes at once; return how many these were."""
        if not releases:
            return 0
        failures = await store.release_some(
            [(each.key, each.owner, each.void) for each in releases]
        )
        now = self._runtime.now()
        for release, failure in zip(releases, failures, strict=False):
            if failure and now < release.until:
                release.due = now + 0.1 + 0.4 * self._runtime.jitter()
            else:
                self._pending.pop(release.owner, None)
        return len(failures)

    async def _beat(self, store: Store) -> None:
        """Send the heartbeats that are due, up to ``PORTION``: the rest is still due afterwards.

        Leases come first, because most places last longer, and of them the one that ends first. So where an
        engine is too slow for all of them, each is renewed later, but in time.
        """
        now = self._runtime.now()
        due = [each for each in list(self._kept.values()) if each.due <= now + each.slack]
        due.sort(
            key=lambda each: (0, each.deadline) if isinstance(each, Holding) else (1, each.due)
        )
        beating: list[tuple[Kept, Pulse]] = []
        for each in due:
            if isinstance(each, Waiter) and each.deaf:
                self._disconnect(each.owner)
                self.release_later(each.key, each.owner, each.terms.ttl, each.close())
                continue
            if pulse := each.pulse(now):
                beating.append((each, pulse))
                if len(beating) == PORTION:
                    break
            if each.over:
                self.drop(each)
        if not beating:
            return
        replies: Sequence[Reply | EngineUnavailable]
        sent = self._runtime.now()
        try:
            replies = await store.refresh([pulse for _, pulse in beating])
        except EngineUnavailable as error:
            replies = [error] * len(beating)
        now = self._runtime.now()
        for (each, _), reply in zip(beating, replies, strict=True):
            if self._kept.get(each.owner) is each:
                each.heard(reply, sent, now)
                if each.over:
                    self.drop(each)
