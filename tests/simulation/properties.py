"""What must hold after every event, and the referee who looks.

The server's table is the truth, and true time the time. A ``Violation`` begins with the name of
the property that does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from weblock._core.holding import Holding, Status, Terms
from weblock._core.ports import Pulse
from weblock._core.table import HANDOFF, PLACE, Gone, Grant, KeyState, Place, Step

from .world import Process, Violation, World

if TYPE_CHECKING:
    from .clients import Application
    from .engine import Part, Server

EPSILON: Final = 1e-6
BEAT: Final = 1.0
"""Seconds between the heartbeats of a waiter."""

SLOWEST: Final = 3.0
"""Seconds that a message is late, at most."""


class Attempt:
    """One call of ``acquire``, with the owners that it made."""

    def __init__(
        self,
        process: Process,
        keys: Sequence[str],
        terms: Terms,
        wait: float | None,
    ) -> None:
        self.process = process
        self.keys = keys
        self.terms = terms
        self.wait = wait
        self.since = process.world.now
        self.returned = False
        self.owners: list[str] = []


class Record:
    """What a client was given, and what of it has been looked at."""

    def __init__(self, process: Process, holding: Holding, terms: Terms) -> None:
        self.process = process
        self.holding = holding
        self.terms = terms
        self.got_at = process.now()
        self.deadline = holding.deadline
        self.grant: Grant | None = None
        self.was_held = True
        self.renews = terms.renew and terms.max_hold is None


class Referee:
    """Watches the server and the clients, and raises ``Violation``."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.server: Server
        self.records: list[Record] = []
        self.attempts: dict[str, Attempt] = {}
        self.ended: dict[str, float] = {}
        self.robbed_owners: dict[str, float] = {}
        self._fences: dict[str, int] = {}
        self._granted: dict[str, list[int]] = {}
        self._released: set[str] = set()
        self._queued: dict[str, str] = {}
        self._place_in_line: dict[str, int] = {}
        self._last_in_line = 0
        self._spoke: set[str] = set()
        self._free_since: dict[str, float] = {}

    # What the server does.

    def applied(self, part: Part, before: KeyState, step: Step, now: float) -> None:
        after = step.state
        if after.grant is not before.grant:
            self._lease_changed(part, before, after, now)
        if after.queue is not before.queue:
            self._queue_changed(part, before, after, now)
        if after.grant and after.grant.claim.owner == part.owner:
            self._spoke.add(part.owner)
        if part.operation == "release":
            self._released.add(part.owner)
            if any(voided.owner == part.owner for voided in before.voided):
                self.world.count("released twice")
        elif isinstance(step.answer, Gone):
            self._refused(part, before)

    def _refused(self, part: Part, before: KeyState) -> None:
        if any(voided.owner == part.owner for voided in before.voided):
            self.world.count("late request refused")
        elif part.operation == "refresh":
            self.world.count("heartbeat for nothing")

    def _lease_changed(self, part: Part, before: KeyState, after: KeyState, now: float) -> None:
        old, new = before.grant, after.grant
        if old and new and old.claim.owner == new.claim.owner and old.fence == new.fence:
            self._lease_moved(part, old, new, now)
            return
        if old and now < old.until and self.server.alive(old.claim.process):
            mine = part.operation == "release" and part.owner == old.claim.owner
            self.must(mine, "P3 foreign effect", f"{part} took the lease of {old.claim.owner}")
        if old and now >= old.until:
            self.world.count("lease ended by itself")
            if not old.confirmed:
                self.world.count("lease passed on, never confirmed")
        if new:
            self._newly_granted(part, before, new, now)

    def _lease_moved(self, part: Part, old: Grant, new: Grant, now: float) -> None:
        owner = old.claim.owner
        self.must(part.owner == owner, "P3 foreign effect", f"{part} moved the lease of {owner}")
        self.must(new.until >= old.until, "P7 deadline", f"{part} shortened a lease")
        ended = now >= old.until and new.until > old.until
        self.must(not ended, "P8 told in time", f"{part} brought back a lease that had ended")

    def _newly_granted(self, part: Part, before: KeyState, new: Grant, now: float) -> None:
        key, owner, fence = part.key, new.claim.owner, new.fence
        last = self._fences.get(key, 0)
        self.must(fence > last, "P2 fences", f"{owner} was given {fence} after {last}")
        self._fences[key] = fence
        self._granted.setdefault(owner, []).append(fence)
        self.must(owner not in self._released, "P6 nothing left", f"{owner} came back as a lease")
        waited_since = self._place_in_line.get(owner, self._last_in_line + 1)
        ahead: list[Place] = []
        for place in before.queue:
            if place.claim.owner == owner:
                live = now < place.until and self.server.alive(place.claim.process)
                live = live or owner == part.owner  # It has come back to ask for itself.
                self.must(live, "P3 foreign effect", f"{owner} was given a lease though it is gone")
            elif self._place_in_line[place.claim.owner] < waited_since:
                ahead.append(place)
        for place in ahead:
            passed_over = part.operation == "release" and place.claim.owner == part.owner
            legitimate = passed_over or self._has_ended(place, before, now)
            self.must(legitimate, "P5 order", f"{owner} passed {place.claim.owner} in the queue")

    def _queue_changed(self, part: Part, before: KeyState, after: KeyState, now: float) -> None:
        now_queued = {place.claim.owner for place in after.queue}
        for place in before.queue:
            owner = place.claim.owner
            if owner in now_queued or (after.grant and after.grant.claim.owner == owner):
                continue
            if owner == part.owner and part.operation == "release":
                continue
            gone = self._has_ended(place, before, now)
            self.must(gone, "P3 foreign effect", f"{part} removed the place of {owner}")
            self.world.count("dead waiter skipped")
        then_queued = {place.claim.owner for place in before.queue}
        for owner in now_queued - then_queued:
            self.must(owner == part.owner, "P3 foreign effect", f"{part} queued {owner}")
            self.must(owner not in self._released, "P6 nothing left", f"{owner} came back to wait")
            self._queued[owner] = part.key
            self._to_the_end_of_the_line(owner)
        last = after.queue[-1].claim.owner if after.queue else ""
        if last == part.owner and last in then_queued:
            self._to_the_end_of_the_line(last)  # Perhaps it had lost its place, and has another.

    def _to_the_end_of_the_line(self, owner: str) -> None:
        self._last_in_line += 1
        self._place_in_line[owner] = self._last_in_line

    def _has_ended(self, place: Place, before: KeyState, now: float) -> bool:
        if not self.server.alive(place.claim.process):
            return True
        if now >= place.until:
            return self.server.faults.any  # Without a fault, no heartbeat is late.
        grant = before.grant
        silent = grant and not grant.confirmed and now >= grant.until
        return bool(grant and silent and grant.claim.process == place.claim.process)

    def robbed(self, state: KeyState) -> None:
        """A lease was taken from its owner by hand, who must be told at its next renewal."""
        assert state.grant is not None
        owner = state.grant.claim.owner
        self.world.count("lease taken by hand")
        self.robbed_owners[owner] = self.world.now
        self.world.disturb(self.world.now)
        for record in self.records:
            if record.holding.owner == owner and record.renews:
                holding, process = record.holding, record.process
                renewal = max(process.now(), holding.deadline - record.terms.ttl * 2 / 3)
                told_by = process.clock.true(renewal) + self.server.op_timeout + 0.2
                self.world.at(told_by, self._told, record, holding.deadline, self.world.now)

    def _told(self, record: Record, deadline: float, robbed_at: float) -> bool:
        if record.process.crashed or self.world.last_fault > robbed_at:
            return False
        if record.holding.deadline != deadline:  # A reply from before was still under way.
            return False
        if record.holding.held(record.process.now()):
            self.must(
                False, "P8 told in time", f"{record.holding.owner} still holds what was taken"
            )
        if record.holding.reason == "taken":
            self.world.count("told in time that the lease was taken")
        return True

    # What the clients do.

    def beats(self, pulses: Sequence[Pulse]) -> None:
        for pulse in pulses:
            ended = pulse.owner in self.ended
            self.must(not ended, "P6 nothing left", f"a heartbeat is sent for {pulse.owner}")

    def made(self, owner: str, attempt: Attempt) -> None:
        self.attempts[owner] = attempt
        attempt.owners.append(owner)

    def started(self, attempt: Attempt) -> Attempt:
        if attempt.wait is not None:
            calls = (len(attempt.keys) + 1) * 2
            latest = attempt.wait + 0.3 + calls * self.server.op_timeout * 1.01
            self.world.at(self.world.now + latest, self._took_its_time, attempt)
        return attempt

    def _took_its_time(self, attempt: Attempt) -> bool:
        process = attempt.process
        if attempt.returned or process.crashed:
            return False
        if process.last_pause >= attempt.since:
            return False
        self.must(False, "P10 live", f"{attempt.owners} with wait={attempt.wait} goes on and on")
        return True

    def got(self, attempt: Attempt, holdings: Sequence[Holding]) -> list[Record]:
        attempt.returned = True
        records = [Record(attempt.process, holding, attempt.terms) for holding in holdings]
        self.records += records
        for holding in holdings:
            granted = self._granted.get(holding.owner, [])
            honest = holding.owner in attempt.owners and holding.fence in granted
            self.must(honest, "P11 honest", f"{holding.owner} has no lease on the server")
            has = self._truly_held(holding) or holding.owner in self.robbed_owners
            self.must(has, "P11 honest", f"{holding.owner} was returned when it had ended")
        return records

    def failed(self, attempt: Attempt, error: BaseException) -> None:
        attempt.returned = True
        single = len(attempt.keys) == 1
        lost = type(error).__name__ == "LeaseLost" and error.reason != "closed"  # type: ignore[attr-defined]
        self.must(not (single and lost), "P11 honest", f"acquire itself lost its lease: {error}")
        self.over(attempt)

    def over(self, attempt: Attempt) -> None:
        """The attempt has failed, or what it got was released: soon nothing is left of it."""
        now = self.world.now
        for owner in attempt.owners:
            if owner not in self.ended:
                self.ended[owner] = now
                self.world.at(now + self._soon, self._left_nothing_soon, attempt, owner, now)

    @property
    def _soon(self) -> float:
        return 2 * self.server.op_timeout + 0.7

    def _left_nothing_soon(self, attempt: Attempt, owner: str, ended: float) -> bool:
        if attempt.process.crashed:
            return False
        now, since = self.world.now, max(ended, self.world.last_fault)
        if now >= since + self._soon - EPSILON:
            return self._left_nothing(attempt, owner)
        ttl = attempt.terms.ttl
        if (
            since + self._soon < ended + ttl * 0.99
        ):  # So long, what is owed is paid again and again.
            self.world.at(since + self._soon, self._left_nothing_soon, attempt, owner, ended)
        else:
            later = max(since, ended + ttl) + SLOWEST + max(PLACE, ttl)
            self.world.at(later * 1.01, self._left_nothing, attempt, owner)
        return False

    def _left_nothing(self, attempt: Attempt, owner: str) -> bool:
        for key in attempt.keys:
            left = self._live_trace(key, owner)
            self.must(not left, "P6 nothing left", f"{owner} still has its {left} of {key}")
        return True

    def _live_trace(self, key: str, owner: str) -> str:
        state, now = self.server.states.get(key), self.server.now()
        if state is None:
            return ""
        if state.grant and state.grant.claim.owner == owner and now < state.grant.until:
            return "lease"
        queued = any(p.claim.owner == owner and now < p.until for p in state.queue)
        return "place" if queued else ""

    def checked(self, record: Record) -> None:
        """``check`` raised nothing."""
        holding = record.holding
        if holding.owner not in self.robbed_owners:
            has = self._truly_held(holding)
            self.must(has, "P8 told in time", f"check of {holding.owner} passed after its lease")

    def _truly_held(self, holding: Holding) -> bool:
        state = self.server.states.get(holding.key)
        grant = state.grant if state else None
        mine = grant is not None and grant.claim.owner == holding.owner
        return bool(grant and mine and self.server.now() < grant.until)

    def released(self, records: Sequence[Record], *, lapsed: bool, told: bool) -> None:
        """``release`` came back; ``lapsed`` says whether the deadline was past before."""
        if lapsed:
            owner = records[0].holding.owner
            self.must(told, "P8 told in time", f"{owner} released late, and was not told")

    # What must hold whenever something has happened.

    def look(self) -> None:
        if self.records:
            self._look_at_leases()
        self._look_at_queues()

    def _look_at_leases(self) -> None:
        kept: list[Record] = []
        by_key: dict[str, str] = {}
        for record in self.records:
            holding, process = record.holding, record.process
            if holding.status is not Status.HELD or process.crashed:
                continue
            kept.append(record)
            if holding.owner in self.robbed_owners:
                continue
            if not holding.held(process.now()):
                self._not_held(record)
                continue
            if not record.was_held:  # The server kept it all the while: only the reply was late.
                record.was_held = True
                self.world.count("renewed though its deadline had passed, unseen")
            other = by_key.setdefault(holding.key, holding.owner)
            both = f"{other} and {holding.owner} both hold {holding.key}"
            self.must(other == holding.owner, "P1 mutex", both)
            self._look_at_deadline(record)
        self.records = kept

    def _not_held(self, record: Record) -> None:
        if record.was_held:
            record.was_held = False
            self.world.count("deadline passed while holding")

    def _look_at_deadline(self, record: Record) -> None:
        holding = record.holding
        state = self.server.states.get(holding.key)
        grant = state.grant if state else None
        if grant is record.grant and holding.deadline == record.deadline:
            return
        owner = holding.owner
        self.must(holding.deadline >= record.deadline, "P7 deadline", f"{owner}'s moved back")
        if holding.deadline > record.deadline:
            self.world.count("lease renewed")
        record.grant, record.deadline = grant, holding.deadline
        mine = grant is not None and grant.claim.owner == owner and grant.fence == holding.fence
        self.must(mine, "P7 deadline", f"{owner} holds what the server gave away")
        assert grant is not None
        ends, local = (
            self.server.clock.true(grant.until),
            record.process.clock.true(holding.deadline),
        )
        self.must(
            local <= ends + EPSILON, "P7 deadline", f"{owner}'s {local:.6f}, server's {ends:.6f}"
        )
        if record.terms.max_hold is not None:
            longest = record.got_at + record.terms.max_hold
            within = holding.deadline <= longest + EPSILON
            self.must(within, "P7 deadline", f"{owner} holds for longer than max_hold")

    def _look_at_queues(self) -> None:
        now, true = self.server.now(), self.world.now
        for key, state in self.server.states.items():
            grant = state.grant
            if grant is not None and now < grant.until:
                self._free_since.pop(key, None)
                if grant.claim.owner not in self._spoke:
                    self._look_at_silence(key, grant, true)
                continue
            if not self._waiters(key):
                self._free_since.pop(key, None)
                continue
            since = max(self._free_since.setdefault(key, true), self.world.last_fault)
            late = true > since + self._patience
            self.must(not late, "P4 wake-up", f"{key} is free since {since:.3f}, and has waiters")

    def _look_at_silence(self, key: str, grant: Grant, true: float) -> None:
        """A lease that was passed on costs others no more than its hand-over, if nobody took it."""
        if not self._waiters(key):
            return
        since = max(self.server.clock.true(grant.since), self.world.last_fault)
        late = true > since + HANDOFF * 1.01 + self._patience
        owner = grant.claim.owner
        self.must(not late, "P4 wake-up", f"{key} was passed to {owner}, which is silent")

    @property
    def _patience(self) -> float:
        return BEAT * 1.01 + 2 * self.server.op_timeout + 0.3

    def _waiters(self, key: str) -> list[str]:
        """Who waits for the key in a process that runs."""
        return [
            owner
            for process, switchboard in self.server.homes.values()
            if process.runs
            for owner in switchboard._bells
            if self._queued.get(owner) == key and owner not in self._granted
        ]

    # What must hold when all is over.

    def at_end(self, apps: Sequence[Application]) -> None:
        for app in apps:
            if not app.crashed:
                name, keeper = app.name, app.keeper
                self.must(keeper.idle, "P9 no leak", f"the keeper of {name} has something")
                self.must(not keeper._by_key, "P9 no leak", f"{name} still knows a holding")
                bells = app.switchboard._bells
                self.must(not bells, "P9 no leak", f"{name} still has a bell")
        for task in self.world.tasks:
            finished = task.done or not task.client or task.process.crashed
            self.must(finished, "P10 live", f"{task.name} waits, and nothing will happen any more")
        for key, state in self.server.states.items():
            owners = [place.claim.owner for place in state.queue]
            if state.grant:
                owners.append(state.grant.claim.owner)
            for owner in owners:
                self._left_at_end(key, owner)

    def _left_at_end(self, key: str, owner: str) -> None:
        attempt = self.attempts[owner]
        if not attempt.process.crashed and self.world.last_fault < attempt.since:
            left = self._live_trace(key, owner)
            self.must(not left, "P9 no leak", f"{owner} still has its {left} of {key}")

    def must(self, holds: bool, name: str, else_: str) -> None:
        if not holds:
            raise Violation(f"{name}: {else_}")
