"""The transitions of one key on random sequences, against what must hold after each of them."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from weblock._core import table
from weblock._core.table import (
    HANDOFF,
    SHARED,
    Claim,
    Gone,
    Grant,
    Held,
    KeyState,
    Moment,
    Place,
    Released,
    Step,
)

OWNERS = [f"owner-{number}" for number in range(6)]
PROCESSES = ["p", "q", "r"]
ROOM = 3

owners = st.sampled_from(OWNERS)
lengths = st.sampled_from([0.1, 0.5, 1.0, HANDOFF, 4.0, 10.0])
limits = st.sampled_from([1, 1, 2, 3, SHARED, SHARED])


class OneKey(RuleBasedStateMachine):
    """Six owners in three processes, which may die, do whatever they like with one key."""

    @initialize(floor=st.integers(0, 5))
    def start(self, floor: int) -> None:
        self.state = KeyState()
        self.now = 100.0
        self.floor = floor
        self.dead: set[str] = set()
        self.fences: list[int] = []

    @property
    def moment(self) -> Moment:
        return Moment(self.now, self.floor, lambda process: process not in self.dead)

    def process_of(self, owner: str) -> str:
        return PROCESSES[OWNERS.index(owner) % len(PROCESSES)]

    def claim_of(self, owner: str, ttl: float, limit: int) -> Claim:
        return Claim(owner, self.process_of(owner), ttl, "", limit)

    @rule(owner=owners, ttl=lengths, limit=limits, room=st.integers(0, ROOM))
    def acquire(self, owner: str, ttl: float, limit: int, room: int) -> None:
        before, was_present = self.state, owner in self.present()
        claim = self.claim_of(owner, ttl, limit)
        step = self.take(table.acquire(before, self.moment, claim, room=room), by=owner)
        if isinstance(step.answer, Held) and not was_present:
            assert not any(map(self.waits, step.state.queue)), "it has overtaken a waiter"
        assert not isinstance(step.answer, Released)
        assert (step.answer == Gone()) == self.is_voided(owner)
        if claim.process not in self.dead:
            again = table.acquire(step.state, self.moment, claim, room=room)
            assert (again.state, again.answer) == (step.state, step.answer), "it was not idempotent"

    @rule(owner=owners, ttl=lengths)
    def refresh(self, owner: str, ttl: float) -> None:
        had = self.has_live_lease(owner)
        mine = self.grant_of(self.state, owner)
        until = mine.until if mine else 0
        waited = owner in [place.claim.owner for place in self.state.queue]
        fence = self.state.fence
        step = self.take(table.refresh(self.state, self.moment, owner, ttl), by=owner)
        if had:
            assert isinstance(step.answer, Held)
            assert step.answer.until == max(until, self.now + ttl)
        elif isinstance(step.answer, Held):
            assert waited, "a heartbeat revived a lease"
            assert step.answer.fence > fence, "a heartbeat revived a lease"

    @rule(beats=st.dictionaries(owners, lengths, min_size=1))
    def refresh_many(self, beats: dict[str, float]) -> None:
        state, answers = self.state, []
        for owner, ttl in beats.items():
            step = table.refresh(state, self.moment, owner, ttl)
            state = step.state
            answers.append(step.answer)
        at_once, told, _ = table.refresh_many(self.state, self.moment, list(beats.items()))
        assert (at_once, told) == (state, answers)

    @rule(owner=owners, void=st.sampled_from([0.0, 0.0, 3.0]))
    def release(self, owner: str, void: float) -> None:
        had = self.has_live_lease(owner, even_if_dead=True)
        step = table.release(self.state, self.moment, owner, void=void)
        self.take(step, left={owner})
        assert step.answer == (Released() if had else Gone())
        assert owner not in self.present()

    @rule(owner=owners, heir=owners, ttl=lengths, limit=limits)
    def transfer(self, owner: str, heir: str, ttl: float, limit: int) -> None:
        grant, had = self.grant_of(self.state, owner), self.has_live_lease(owner)
        if heir in self.present() or self.is_voided(heir):
            return
        if owner in self.present() and not grant:  # A waiter has nothing to give.
            return
        step = table.transfer(self.state, self.moment, owner, self.claim_of(heir, ttl, limit))
        self.take(step, by=owner)
        assert isinstance(step.answer, Held) == had
        if had:
            assert grant
            moved = self.grant_of(step.state, heir)
            assert moved
            assert moved[1:3] == grant[1:3], "the fence or the beginning has changed"
            assert moved.claim.limit == grant.claim.limit, "others may have relied on the limit"
            assert step.answer.until == self.now + ttl

    @rule()
    def force_release(self) -> None:
        holders = {grant.claim.owner for grant in self.live(self.state)}
        step = self.take(table.force_release(self.state, self.moment), left=holders)
        assert not holders & set(self.present())
        assert step.answer == (Released() if holders else Gone())

    @rule()
    def look(self) -> None:
        shown = table.current(self.state, self.moment)
        assert table.current(shown, self.moment) == shown
        assert shown.fence == self.state.fence
        assert list(shown.grants) == self.live(self.state)
        for place in shown.queue:
            assert self.now < place.until
            assert place.claim.process not in self.dead
        # Who touches the key next lets in the first that are shown, and drops nobody else shown.
        after, woken = table.settle(self.state, self.moment)
        heirs = [grant.claim.owner for grant in woken]
        heirs += [place.claim.owner for place in table.current(after, self.moment).queue]
        assert heirs == [place.claim.owner for place in shown.queue]

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.5, HANDOFF, 4.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(floor=st.integers(0, 50))
    def the_wall_clock_steps(self, floor: int) -> None:
        self.floor = floor

    @rule(process=st.sampled_from(PROCESSES))
    @precondition(lambda self: len(self.dead) < 2)
    def a_process_dies(self, process: str) -> None:
        self.dead.add(process)

    def take(self, step: Step, *, by: str = "", left: Collection[str] = ()) -> Step:
        """Looks at what a transition did, beside the answer: one of ``by``, or the end of ``left``."""
        before, after = self.state, step.state
        self.others_are_left_alone(before, after, {by, *left})
        self.live_leases_are_left_alone(before, after, {by, *left})
        woken = [grant.claim for grant in step.woken]
        assert woken == [each for each in self.who_enters(before, left) if each.owner != by]
        for grant in step.woken:
            self.a_hand_over_is_short(grant)
        had = {grant.fence for grant in before.grants}
        self.fences += [grant.fence for grant in after.grants if grant.fence not in had]
        self.state = after
        return step

    def others_are_left_alone(self, before: KeyState, after: KeyState, by: set[str]) -> None:
        """The order of the queue is kept, and only its end grows."""
        stayed = [place.claim.owner for place in after.queue if place.claim.owner not in by]
        were = [place.claim.owner for place in before.queue if place.claim.owner not in by]
        kept = iter(were)
        assert all(owner in kept for owner in stayed), "the queue was reordered, or grew a stranger"

    def live_leases_are_left_alone(self, before: KeyState, after: KeyState, by: set[str]) -> None:
        for grant in self.live(before):
            assert grant.claim.owner in by or grant in after.grants

    def a_hand_over_is_short(self, grant: Grant) -> None:
        assert grant.until - self.now <= min(grant.claim.ttl, HANDOFF) + 1e-9
        assert not grant.confirmed
        assert grant.claim.process not in self.dead

    def who_enters(self, before: KeyState, left: Collection[str]) -> list[Claim]:
        """Who gets a lease, where ``left`` have just given back what they had."""
        inside = [each.claim for each in self.live(before) if each.claim.owner not in left]
        ended = [each for each in before.grants if each not in self.live(before)]
        silent = {
            each.claim.process
            for each in ended
            if not each.confirmed and each.claim.owner not in left
        }
        entering: list[Claim] = []
        for place in before.queue:
            claim = place.claim
            if self.waits(place) and claim.owner not in left and claim.process not in silent:
                all_of_them = [*inside, *entering, claim]
                if len(all_of_them) > min(each.limit for each in all_of_them):
                    break
                entering.append(claim)
        return entering

    def waits(self, place: Place) -> bool:
        return self.now < place.until and place.claim.process not in self.dead

    def present(self) -> list[str]:
        there = [place.claim.owner for place in self.state.queue]
        return there + [grant.claim.owner for grant in self.state.grants]

    def live(self, state: KeyState) -> list[Grant]:
        return [
            grant
            for grant in state.grants
            if self.now < grant.until and grant.claim.process not in self.dead
        ]

    def grant_of(self, state: KeyState, owner: str) -> Grant | None:
        return next((grant for grant in state.grants if grant.claim.owner == owner), None)

    def has_live_lease(self, owner: str, *, even_if_dead: bool = False) -> bool:
        grant = self.grant_of(self.state, owner)
        if grant is None or self.now >= grant.until:
            return False
        return even_if_dead or grant.claim.process not in self.dead

    def is_voided(self, owner: str) -> bool:
        return any(v.owner == owner and self.now < v.until for v in self.state.voided)

    @invariant()
    def nobody_is_there_twice(self) -> None:
        assert len(set(self.present())) == len(self.present())

    @invariant()
    def somebody_holds_what_somebody_waits_for(self) -> None:
        assert self.state.grants or not self.state.queue

    @invariant()
    def there_are_never_more_than_the_smallest_limit(self) -> None:
        for grant in self.state.grants:
            assert len(self.state.grants) <= grant.claim.limit

    @invariant()
    def the_queue_is_bounded(self) -> None:
        assert len(self.state.queue) <= ROOM

    @invariant()
    def fences_increase(self) -> None:
        assert self.fences == sorted(set(self.fences))
        of_grants = [grant.fence for grant in self.state.grants]
        assert of_grants == sorted(of_grants)
        assert not of_grants or of_grants[-1] <= self.state.fence

    @invariant()
    def the_voided_are_not_there(self) -> None:
        assert not [owner for owner in self.present() if self.is_voided(owner)]


TestOneKey = OneKey.TestCase
TestOneKey.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
