"""The properties P1 to P13: what must hold after every event, whatever the faults.

Each is told what happened, compares it with the truth, and fails the run in its own name. Where
time is bounded, the bound counts from the end of the last fault that may excuse a delay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from weblock._core import table
from weblock._core.holding import Holding, Status
from weblock._core.keeping import BEAT
from weblock._core.ports import Pulse, Reply
from weblock._core.table import HANDOFF, SHARED, Grant, Held, KeyState, Place, fits
from weblock.errors import AlreadyHeld, EngineUnavailable, LeaseLost, LockTimeout, WeblockError

from .engine import Acquire, AskRelease, Change, Refresh, Request
from .process import Process
from .truth import Belief, Truth

if TYPE_CHECKING:
    from .attempts import Attempt

SLACK: Final = 0.15
"""Seconds for a few switches between tasks."""


class Property:
    """Hears of everything; does nothing about it."""

    name = ""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.world = truth.world
        self.engine = truth.engine
        # Several messages one after the other, each as slow as the network ever is without faults.
        self.round_trips = 8 * truth.swarm.delay * 1.2 + SLACK

    def fail(self, what: str) -> None:
        self.world.fail(self.name, what)

    def undisturbed_for(self, since: float) -> float:
        """How long it has been since then, less what a fault may excuse."""
        return self.world.now - max(since, self.truth.disturbed_until)

    def after_event(self) -> None: ...

    def audit(self) -> None: ...

    def at_end(self) -> None: ...

    def applied(self, change: Change) -> None: ...

    def forgot(self) -> None: ...

    def sent(self, process: Process, request: Request) -> None: ...

    def answered(self, request: Request, replies: list[Reply]) -> None: ...

    def believed(self, belief: Belief) -> None: ...

    def got(self, attempt: Attempt, holdings: Sequence[Holding]) -> None: ...

    def refused(self, attempt: Attempt, error: WeblockError, after: float) -> None: ...

    def checked(self, attempt: Attempt, holdings: Sequence[Holding]) -> None: ...

    def lost(self, attempt: Attempt, loss: LeaseLost) -> None: ...

    def released(
        self,
        attempt: Attempt,
        holdings: Sequence[Holding],
        had_lost: Sequence[Holding],
        loss: LeaseLost | None,
    ) -> None: ...

    def ended(self, attempt: Attempt) -> None: ...


class Mutex(Property):
    """No two attempts believe at the same true time that they hold the same key, beyond what limits allow.

    Of those that hold it together, each has a limit at least as large as their number: so a writer
    is alone, and of two limits the smaller counts while a holder has it. A process that is stopped cannot act on what it believes; on waking, it must know at once. Only
    an engine that lost its memory may give away what it gave before.
    """

    name = "P1 mutex"

    def after_event(self) -> None:
        beliefs = self.truth.beliefs
        if len(beliefs) < 2:
            return
        holders: dict[str, list[Belief]] = {}
        for belief in beliefs:
            if belief.process.running and belief.holding.held(belief.process.now()):
                holders.setdefault(belief.holding.key, []).append(belief)
        for together in holders.values():
            if len(together) > 1 and _too_many(together):
                self._overlap(together)

    def applied(self, change: Change) -> None:
        if len(change.after.grants) < 2:
            return
        live = [grant for grant in change.after.grants if change.now < grant.until]
        if live and len(live) > min(grant.claim.limit for grant in live):
            self.fail(f"{change.request} left {live}, more than the smallest of their limits")

    def _overlap(self, together: Sequence[Belief]) -> None:
        for epoch in {belief.epoch for belief in together}:
            known = [each for each in together if each.epoch == epoch or self.engine.remembers]
            if _too_many(known):
                self.fail(f"{' and '.join(map(str, known))} hold the same key")
        self.truth.sometimes("holders overlapped since the engine forgot")


class Fences(Property):
    """Fences increase strictly per key in the order of grants; one acquisition has one."""

    name = "P2 fence"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._last: dict[str, int] = {}

    def applied(self, change: Change) -> None:
        for grant in change.granted:
            last = self._last.get(change.key, 0)
            if grant.fence <= last:
                self.fail(f"{grant} was granted after fence {last}")
            self._last[change.key] = grant.fence
            had = _grant_of(change.before, grant.claim.owner)
            if had is None or change.now >= had.until:
                continue
            if self.truth.alive(grant.claim.process):
                self.fail(f"{grant} was granted to the owner of fence {had.fence}")


class NoForeignEffect(Property):
    """A request of one owner changes nothing that another has, but passes on what has ended."""

    name = "P3 no foreign effect"

    def applied(self, change: Change) -> None:
        before, after = change.before, change.after
        if before.grants is not after.grants:
            self._leases(change)
        if before.places is not after.places:
            self._places(change)
        for mark in before.voided:
            kept = (each.owner == mark.owner and each.until >= mark.until for each in after.voided)
            if not any(kept) and change.now < mark.until:
                self.fail(f"{change.request} removed {mark}")

    def _leases(self, change: Change) -> None:
        has = change.after.grants
        for had in change.before.grants:
            if had.claim.owner != change.owner and had not in has:
                ended = change.now >= had.until or not self.truth.alive(had.claim.process)
                if not ended:
                    self.fail(f"{change.request} changed {had}: {has}")
        for granted in change.granted:
            if granted.claim.owner != change.owner:
                place = _place_of(change.before, granted.claim.owner)
                if place is None or change.now >= place.until:
                    self.fail(
                        f"{change.request} granted a lease to one who does not wait: {granted}"
                    )

    def _places(self, change: Change) -> None:
        for place in change.before.queue:
            kept = _place_of(change.after, place.claim.owner)
            if place.claim.owner == change.owner or kept == place:
                continue
            if kept is not None or not self._may_leave(change, place):
                self.fail(f"{change.request} changed {place} to {kept}")
        for place in change.after.queue:
            owner = place.claim.owner
            if owner != change.owner and _place_of(change.before, owner) is None:
                self.fail(f"{change.request} queued {place}")

    def _may_leave(self, change: Change, place: Place) -> bool:
        return (
            change.now >= place.until
            or not self.truth.alive(place.claim.process)
            or any(granted.claim.owner == place.claim.owner for granted in change.granted)
            or _was_silent(change.before, change.now, place.claim.process)
        )


class WakeUp(Property):
    """A key that the first live waiter may have is granted, and the waiter knows it, in bounded time.

    With P5, nobody starves: whoever is first enters as soon as its limit and those of the holders
    allow it, and all who came before are served before. At once if nothing failed; within a heartbeat if a notification was lost or the lease expired. One who
    was handed a lease and does not say that it lives costs the others no more than ``HANDOFF``.
    """

    name = "P4 wake-up"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self.heartbeat = BEAT * 1.01 + self.round_trips

    def audit(self) -> None:
        now = self.engine.now()
        for key, state in self.engine.states.items():
            live = tuple(grant for grant in state.grants if now < grant.until)
            for grant in live:
                if self.truth.is_asking(grant.claim.owner):
                    self._unaware(grant)
                elif (key, grant.fence) in self.truth.handed:
                    self._silent(state, grant, now)
            if state.queue:
                self._free(key, state, live, now)

    def applied(self, change: Change) -> None:
        if not change.after.queue or not change.after.grants or self.engine.recovery:
            return  # One that recovers may keep all out.
        if isinstance(change.request, Pulse) and not change.request.waits:
            return  # A holder's heartbeat lets in nobody: that of a waiter does.
        state = change.after
        live = tuple(grant for grant in state.grants if change.now < grant.until)
        for place in state.queue:
            if change.now < place.until and self.truth.alive(place.claim.process):
                if fits(place.claim, live):
                    self.fail(f"{change.request} left {place} waiting, which fits beside {live}")
                return

    def _free(self, key: str, state: KeyState, live: tuple[Grant, ...], now: float) -> None:
        ends = [grant.until for grant in state.grants if now >= grant.until]
        for place in state.queue:
            if now >= place.until or not self.truth.alive(place.claim.process):
                ends.append(min(now, place.until))  # Since then, those behind it are in front.
            elif not fits(place.claim, live):
                return
            elif self.truth.is_asking(place.claim.owner):
                attempt = self.truth.by_owner[place.claim.owner]
                freed_at = max(ends, default=0.0)
                since = max(self.engine.true_time(freed_at), attempt.started_at)
                if self.undisturbed_for(since) > self.heartbeat:
                    self.fail(f"{key} is free, and {attempt.name} waits for it in vain")

    def _unaware(self, grant: Grant) -> None:
        attempt = self.truth.by_owner[grant.claim.owner]
        lost = grant.claim.owner in self.truth.rings_lost
        # One whose request failed pauses before the next.
        slow = lost or self.truth.disturbed_until >= attempt.started_at
        if self.undisturbed_for(self.engine.true_time(grant.since)) > (
            self.heartbeat if slow else self.round_trips
        ):
            self.fail(f"{attempt.name} does not know of {grant}")

    def _silent(self, state: KeyState, grant: Grant, now: float) -> None:
        if self.engine.true_time(grant.since) <= self.truth.forgot_at:
            return  # What another run wrote lasts for a recovery.
        if now > grant.since + HANDOFF + SLACK and any(
            self.truth.is_asking(place.claim.owner) for place in state.queue
        ):
            self.fail(f"others wait for {grant}, which nobody confirmed")


class FirstComeFirstServed(Property):
    """The engine grants in the order in which claims were queued; only the absent are passed.

    Nobody enters before one that came earlier, not even where it fits and the other does not.
    """

    name = "P5 fifo"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._order: dict[str, list[str]] = {}

    def applied(self, change: Change) -> None:
        for granted in change.granted:
            self._not_passed(change, granted)
        if change.before.places is not change.after.places:
            self._keep_order(change)

    def forgot(self) -> None:
        self._order.clear()

    def _keep_order(self, change: Change) -> None:
        waiting = change.after.places
        # Of a queue that an engine has kept though it forgot much, the order is what it kept.
        known = self._order.get(change.key) or [each.claim.owner for each in change.before.queue]
        order = [owner for owner in known if owner in waiting]
        place = _place_of(change.before, change.owner)
        if place is not None and not self._was_present(change, place):
            # One that comes back too late keeps its place if nobody has passed it, or queues again.
            order = [owner for owner in order if owner != change.owner]
            if change.owner in waiting:
                order.insert(list(waiting).index(change.owner), change.owner)
        order += [owner for owner in waiting if owner not in order]
        self._order[change.key] = order

    def _not_passed(self, change: Change, granted: Grant) -> None:
        earlier = {each.claim.owner for each in change.granted if each.fence < granted.fence}
        for owner in self._order.get(change.key, ()):
            if owner == granted.claim.owner:
                return
            if owner == change.owner or owner in earlier:
                continue  # It left by itself, or was served before.
            place = _place_of(change.before, owner)
            if place is not None and self._was_present(change, place):
                self.fail(f"{granted} passed {place}, which came first")

    def _was_present(self, change: Change, place: Place) -> bool:
        process = place.claim.process
        if change.now >= place.until or not self.truth.alive(process):
            return False
        return not _was_silent(change.before, change.now, process)


class Cancelled(Property):
    """An attempt that ended leaves nothing in the engine, and nothing is renewed for it."""

    name = "P6 cancelled"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        pause_of_a_debt = 0.51
        self.bound = truth.swarm.op_timeout + pause_of_a_debt + self.round_trips

    def sent(self, process: Process, request: Request) -> None:
        if isinstance(request, Refresh):
            for pulse in request.pulses:
                attempt = self.truth.by_owner[pulse.owner]
                if attempt.ended_at is not None:
                    self.fail(f"{process.name} sent {pulse} for {attempt.name}, which has ended")

    def applied(self, change: Change) -> None:
        if change.owner not in self.truth.cleaned:
            return
        if self.truth.by_owner[change.owner].started_at <= self.truth.forgot_at:
            return  # The mark that refuses late requests may be forgotten, also if the answer came after that.
        if _has(change.after, change.owner) and not _has(change.before, change.owner):
            self.fail(f"{change.request} came back after its release had been answered")

    def audit(self) -> None:
        now = self.engine.now()
        for state in self.engine.states.values():
            for owner in _owners(state, now):
                attempt = self.truth.by_owner[owner]
                if self._should_be_clean(attempt):
                    self.fail(f"{attempt.name} has ended, and left {owner} in {state}")

    def _should_be_clean(self, attempt: Attempt) -> bool:
        """Its process could clean up, and would not give up yet for want of an answer."""
        if attempt.ended_at is None or attempt.process_dead or attempt.client.keeper.is_closed:
            return False
        if attempt.started_at <= self.truth.forgot_at:
            return False  # See above.
        gives_up_after = attempt.plan.terms.ttl / 1.01
        gave_up = self.world.now - attempt.ended_at >= gives_up_after
        return not gave_up and self.undisturbed_for(attempt.ended_at) > self.bound


class DeadlineFirst(Property):
    """A holder's deadline comes before the engine's, in true time, and never moves back."""

    name = "P7 deadline first"

    def after_event(self) -> None:
        for belief in self.truth.beliefs:
            holding = belief.holding
            state = self.engine.states.get(holding.key)
            grant = _grant_of(state, holding.owner) if state else None
            if holding.deadline == belief.deadline and grant is belief.grant:
                continue
            if holding.deadline < belief.deadline:
                self.fail(f"the deadline of {belief} moved back")
            if holding.deadline > belief.deadline:
                self._extended(belief)
            belief.deadline, belief.grant = holding.deadline, grant
            if belief.epoch == self.truth.epoch and holding.held(belief.process.now()):
                self._agrees(belief, grant)

    def _agrees(self, belief: Belief, grant: Grant | None) -> None:
        holding = belief.holding
        if grant is None or (grant.claim.owner, grant.fence) != (holding.owner, holding.fence):
            self.fail(f"{belief} still counts on its lease, and the engine has {grant}")
            return
        deadline = belief.process.true_time(holding.deadline)
        if deadline > self.engine.true_time(grant.until):
            self.fail(f"{belief} counts on its lease until {deadline}, after {grant}")

    def _extended(self, belief: Belief) -> None:
        if belief.process.now() >= belief.deadline:
            self.fail(f"{belief} was renewed after its deadline had passed")
        if not belief.holding.terms.renew and not belief.attempt.plan.extends:
            self.fail(f"{belief} was renewed without being asked for")

    def applied(self, change: Change) -> None:
        if change.before.grants is change.after.grants:
            return
        for had in change.before.grants:
            has = _grant_of(change.after, had.claim.owner)
            if has is None or has == had or had[:2] != has[:2]:
                continue
            if change.now >= had.until:
                self.fail(f"{change.request} brought {had} back as {has}")
            if has.until < had.until:
                self.fail(f"{change.request} shortened {had} to {has}")


class ToldInTime(Property):
    """A holder that can run is told that its lease is lost by its deadline, or when it asks.

    The keeper tells; while it waits for the engine's answer to something else, ``check`` does.
    """

    name = "P8 told in time"

    def audit(self) -> None:
        for belief in self.truth.beliefs:
            process = belief.process
            if not process.running:
                continue
            late = process.now() - belief.holding.deadline
            store = belief.attempt.client.keeper_store
            busy = 0.0 if store.asking else self.world.now - max(store.asked_at, process.woke_at)
            if late > SLACK and busy > SLACK:
                self.fail(f"{belief} was not told that its lease ended {late:.3f} s ago")
            refuted_at = belief.refuted_at
            if refuted_at is not None and self.world.now - max(refuted_at, process.woke_at) > SLACK:
                self.fail(f"{belief} was not told that the engine knows nothing of it")

    def believed(self, belief: Belief) -> None:
        self._within_max_hold(belief.holding, belief.process)

    def checked(self, attempt: Attempt, holdings: Sequence[Holding]) -> None:
        now = attempt.client.process.now()
        for holding in holdings:
            if now >= holding.deadline:
                self.fail(f"{attempt.name} asked after its deadline, and was not told")
            self._within_max_hold(holding, attempt.client.process)

    def released(
        self,
        attempt: Attempt,
        holdings: Sequence[Holding],
        had_lost: Sequence[Holding],
        loss: LeaseLost | None,
    ) -> None:
        for holding in holdings:
            expected = holding.status is Status.LOST
            if attempt.told.count(holding.owner) != expected:
                self.fail(
                    f"{attempt.name} was told {attempt.told}: {holding.status} {holding.owner}"
                )

    def _within_max_hold(self, holding: Holding, process: Process) -> None:
        if holding.terms.max_hold is None:
            return
        if holding.deadline > process.now() + holding.terms.max_hold + 1e-6:
            self.fail(f"fence {holding.fence} of {holding.key} is held beyond max_hold")


class Bounded(Property):
    """No deadline is later than what was asked for allows, and no renewal is due late.

    Whatever the engine says: its clock may step. A lease that was handed over lasts until its
    process has asked for it.
    """

    name = "P12 bounded"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._longest: dict[str, float] = {}
        self._seen: dict[str, tuple[float, float]] = {}

    def sent(self, process: Process, request: Request) -> None:
        if isinstance(request, Acquire):
            self._ask(process, request.claim.owner, request.claim.ttl)
        elif isinstance(request, Refresh):
            for pulse in request.pulses:
                self._ask(process, pulse.owner, pulse.ttl)

    def _ask(self, process: Process, owner: str, ttl: float) -> None:
        self._longest[owner] = max(self._longest.get(owner, 0.0), process.now() + ttl)

    def believed(self, belief: Belief) -> None:
        holding = belief.holding
        handed_over = belief.process.now() + min(holding.terms.ttl, HANDOFF)
        self._longest[holding.owner] = max(self._longest[holding.owner], handed_over)

    def after_event(self) -> None:
        for belief in self.truth.beliefs:
            holding = belief.holding
            if self._seen.get(holding.owner) != (holding.deadline, holding.due):
                self._seen[holding.owner] = holding.deadline, holding.due
                self._look(belief)

    def _look(self, belief: Belief) -> None:
        holding, now = belief.holding, belief.process.now()
        if holding.status is not Status.HELD:
            return
        if holding.deadline > self._longest[holding.owner]:
            self.fail(f"{belief} counts on more than was ever asked for")
        if holding.terms.renew and holding.due > now + holding.terms.ttl / 3 + 1e-6:
            self.fail(f"{belief} is renewed in {holding.due - now:.3f} s")


class NoLeak(Property):
    """When all clients have gone, nothing of them is left, in the engine or in a process."""

    name = "P9 no leak"

    def at_end(self) -> None:
        now = self.engine.now()
        for key, state in self.engine.states.items():
            if owners := _owners(state, now):
                self.fail(f"{owners} are left in {key}")
        for client in self.truth.clients:
            keeper = client.keeper
            if client.process.dead or keeper.is_closed:
                continue
            left = [keeper._kept, keeper._pending, keeper.holdings, client.switchboard.mailboxes]
            tasks = [task.name for task in client.process.tasks if not task.done]
            if any(left) or set(tasks) - {"keeper"}:
                self.fail(f"{left} {tasks} are left in {client.process.name}")


class Live(Property):
    """When faults have ended, every attempt ends; and no caller waits much longer than it said.

    A holder that lives keeps its lease as long as it wants, if nothing fails.
    """

    name = "P10 live"

    def at_end(self) -> None:
        for attempt in self.truth.attempts.values():
            if not attempt.over:
                self.fail(f"{attempt.name} never ends: it is {attempt.phase.value}")

    def refused(self, attempt: Attempt, error: WeblockError, after: float) -> None:
        wait = attempt.plan.wait
        if wait is None or not isinstance(error, LockTimeout):
            return
        due = self.world.now - (after - wait) / attempt.client.process.rate
        # A key that it has got by then is given back first, and its request may be under way.
        if self.undisturbed_for(due) > 2 * self.round_trips:
            self.fail(f"{attempt.name} waited {after:.3f} s instead of {wait:.3f}")

    def lost(self, attempt: Attempt, loss: LeaseLost) -> None:
        terms = attempt.plan.terms
        if not terms.renew or terms.max_hold is not None or attempt.client.keeper.is_closed:
            return
        if self.truth.disturbed_until < attempt.started_at:
            self.fail(f"{attempt.name} was told {loss}, and nothing had failed")


class Honest(Property):
    """What an attempt is told is so: held, busy, unavailable, lost are four different things."""

    name = "P11 honest"

    def got(self, attempt: Attempt, holdings: Sequence[Holding]) -> None:
        now = attempt.client.process.now()
        if tuple(holding.key for holding in holdings) != attempt.plan.keys:
            self.fail(f"{attempt.name} asked for {attempt.plan.keys} and got {holdings}")
        for holding in holdings:
            if not holding.held(now):
                self.fail(f"{attempt.name} was given a lease that had ended")
            if self.truth.by_owner[holding.owner] is not attempt:
                self.fail(f"{attempt.name} was given what {holding.owner} has")

    def refused(self, attempt: Attempt, error: WeblockError, after: float) -> None:
        busy = any(owner in self.truth.busy for owner in attempt.owners)
        wait = attempt.plan.wait
        if isinstance(error, LockTimeout) and not busy and (wait is None or after < wait - 1e-6):
            self.fail(f"{attempt.name} was told busy after {after:.3f} s of {wait}: {error}")
        trouble = self.truth.disturbed_until >= attempt.started_at
        closed = attempt.client.keeper.is_closed
        if isinstance(error, EngineUnavailable) and not trouble and not closed:
            self.fail(f"{attempt.name} was told {error}, and the engine was there all the time")
        if isinstance(error, LeaseLost) and len(attempt.plan.keys) == 1:
            self.fail(f"{attempt.name} was told {error}, and never had it")
        if isinstance(error, AlreadyHeld):
            self.fail(f"{attempt.name} was told {error}, and does not nest")

    def released(
        self,
        attempt: Attempt,
        holdings: Sequence[Holding],
        had_lost: Sequence[Holding],
        loss: LeaseLost | None,
    ) -> None:
        if loss is None and had_lost:
            self.fail(f"{attempt.name} released what it had lost, and was not told")
        now, denied = attempt.client.process.now(), self.truth.denied
        # One that has ended meanwhile may have been valid when it was let go of.
        if loss is None and any(each.owner in denied and now < each.deadline for each in holdings):
            self.fail(f"{attempt.name} released what the engine did not know, and was not told")
        if loss is not None and not any(holding.status is Status.LOST for holding in holdings):
            self.fail(f"{attempt.name} was told {loss}, and lost nothing")


class Asked(Property):
    """Holders that are asked to release learn it with their next renewal; later ones never do."""

    name = "P13 asked"

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._asked: dict[str, int] = {}
        """The largest fence of a key's holders, when they were asked last."""
        self._forgotten: dict[str, int] = {}
        """The same, of what the engine may have forgotten since, or not."""
        self._renewals: dict[int, tuple[Refresh, frozenset[str]]] = {}
        """Heartbeats, and which owners knew of their leases when these were sent."""
        self._told_at: dict[str, float] = {}

    def applied(self, change: Change) -> None:
        if isinstance(change.request, AskRelease):
            self._ask(change)
        elif isinstance(change.step.answer, Held):
            self._is_told(change, change.step.answer)

    def forgot(self) -> None:
        for key, fence in self._asked.items():
            self._forgotten[key] = max(self._forgotten.get(key, 0), fence)
        self._asked.clear()

    def sent(self, process: Process, request: Request) -> None:
        if isinstance(request, Refresh) and self.truth.swarm.asks:
            owners = frozenset(pulse.owner for pulse in request.pulses) & self.truth.served
            self._renewals[id(request)] = request, owners

    def answered(self, request: Request, replies: list[Reply]) -> None:
        if isinstance(request, Refresh) and self.truth.swarm.asks:
            _request, owners = self._renewals[id(request)]
            for pulse, reply in zip(request.pulses, replies, strict=True):
                told = isinstance(reply.answer, Held) and reply.answer.asked
                if told and pulse.owner in owners:
                    self._told_at.setdefault(pulse.owner, self.world.now)

    def _ask(self, change: Change) -> None:
        holders = [grant.fence for grant in change.after.grants]
        if not isinstance(change.step.answer, table.Asked if holders else table.Gone):
            self.fail(f"{change.request} was answered {change.step.answer}: {change.after}")
        if holders:
            self.truth.sometimes("holder was asked")
            self._asked[change.key] = max(holders)

    def _is_told(self, change: Change, answer: Held) -> None:
        asked = self._asked.get(change.key, 0)
        if answer.fence <= self._forgotten.get(change.key, 0):
            return
        if answer.asked != (answer.fence <= asked):
            self.fail(f"{change.request} was answered {answer}, and asked were those up to {asked}")
        if asked and not answer.asked:
            self.truth.sometimes("holder that was asked is followed")

    def audit(self) -> None:
        if not self.truth.swarm.asks:
            return
        for belief in self.truth.beliefs:
            told_at = self._told_at.get(belief.holding.owner)
            if told_at is None:
                if belief.holding.asked_to_release:
                    self.fail(f"{belief} believes that it was asked to release")
            elif belief.process.running and belief.holding.held(belief.process.now()):
                since = max(told_at, belief.process.woke_at)
                if not belief.holding.asked_to_release and self.world.now - since > SLACK:
                    self.fail(f"{belief} was asked to release, and does not say so")

    def released(
        self,
        attempt: Attempt,
        holdings: Sequence[Holding],
        had_lost: Sequence[Holding],
        loss: LeaseLost | None,
    ) -> None:
        for holding in holdings:
            if attempt.asked.count(holding.owner) != holding.asked_to_release:
                self.fail(f"{attempt.name} was told of {attempt.asked}: {holding.owner}")


def _too_many(together: Sequence[Belief]) -> bool:
    """Whether these are more than the smallest of their limits allows."""
    return len(together) > min([each.holding.terms.limit for each in together], default=SHARED)


def _grant_of(state: KeyState, owner: str) -> Grant | None:
    for grant in state.grants:
        if grant.claim.owner == owner:
            return grant
    return None


def _place_of(state: KeyState, owner: str) -> Place | None:
    return state.places.get(owner)


def _was_silent(state: KeyState, now: float, process: str) -> bool:
    """Whether this process was handed a lease that has ended, and never confirmed it."""
    return any(
        not grant.confirmed and grant.claim.process == process and now >= grant.until
        for grant in state.grants
    )


def _has(state: KeyState, owner: str) -> bool:
    return _grant_of(state, owner) is not None or _place_of(state, owner) is not None


def _owners(state: KeyState, now: float) -> list[str]:
    """Who has something in this state that has not ended."""
    owners = [place.claim.owner for place in state.queue if now < place.until]
    return owners + [grant.claim.owner for grant in state.grants if now < grant.until]


PROPERTIES: Final[tuple[type[Property], ...]] = (
    Mutex,
    Fences,
    NoForeignEffect,
    WakeUp,
    FirstComeFirstServed,
    Cancelled,
    DeadlineFirst,
    ToldInTime,
    Live,
    NoLeak,
    Honest,
    Bounded,
    Asked,
)
