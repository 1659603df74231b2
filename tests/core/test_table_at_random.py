"""The transitions of one key on random sequences, against what must hold after each of them."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from weblock._core import table
from weblock._core.table import HANDOFF, Claim, Gone, Held, KeyState, Moment, Released, Step

OWNERS = [f"owner-{number}" for number in range(6)]
PROCESSES = ["p", "q", "r"]
ROOM = 3

owners = st.sampled_from(OWNERS)
lengths = st.sampled_from([0.1, 0.5, 1.0, HANDOFF, 4.0, 10.0])


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

    def claim_of(self, owner: str, ttl: float) -> Claim:
        return Claim(owner, self.process_of(owner), ttl, "")

    @rule(owner=owners, ttl=lengths, room=st.integers(0, ROOM))
    def acquire(self, owner: str, ttl: float, room: int) -> None:
        before = self.state
        claim = self.claim_of(owner, ttl)
        step = self.take(table.acquire(before, self.moment, claim, room=room), by=owner)
        assert not isinstance(step.answer, Released)
        assert (step.answer == Gone()) == self.is_voided(owner)
        if claim.process not in self.dead:
            again = table.acquire(step.state, self.moment, claim, room=room)
            assert (again.state, again.answer) == (step.state, step.answer), "it was not idempotent"

    @rule(owner=owners, ttl=lengths)
    def refresh(self, owner: str, ttl: float) -> None:
        had = self.has_live_lease(owner)
        until = self.state.grant.until if self.state.grant else 0
        waited = owner in [place.claim.owner for place in self.state.queue]
        fence = self.state.fence
        step = self.take(table.refresh(self.state, self.moment, owner, ttl), by=owner)
        if had:
            assert isinstance(step.answer, Held)
            assert step.answer.until == max(until, self.now + ttl)
        elif isinstance(step.answer, Held):
            assert waited, "a heartbeat revived a lease"
            assert step.answer.fence > fence, "a heartbeat revived a lease"

    @rule(owner=owners, void=st.sampled_from([0.0, 0.0, 3.0]))
    def release(self, owner: str, void: float) -> None:
        had = self.has_live_lease(owner, even_if_dead=True)
        step = table.release(self.state, self.moment, owner, void=void)
        self.take(step, by=owner, released=True)
        assert step.answer == (Released() if had else Gone())
        assert owner not in self.present()

    @rule(owner=owners, heir=owners, ttl=lengths)
    def transfer(self, owner: str, heir: str, ttl: float) -> None:
        grant, had = self.state.grant, self.has_live_lease(owner)
        if heir in self.present() or self.is_voided(heir):
            return
        step = table.transfer(self.state, self.moment, owner, self.claim_of(heir, ttl))
        self.take(step, by=owner)
        assert isinstance(step.answer, Held) == had
        if had:
            assert grant
            assert step.state.grant
            assert step.state.grant[1:3] == grant[1:3], "the fence or the beginning has changed"
            assert step.answer.until == self.now + ttl

    @rule()
    def force_release(self) -> None:
        grant = self.state.grant
        holder = grant.claim.owner if grant and self.is_live(self.state) else None
        step = table.force_release(self.state, self.moment)
        if holder is None:
            self.take(step, by="nobody")
        else:
            self.take(step, by=holder, released=True)
            assert holder not in self.present()
        assert step.answer == (Released() if holder else Gone())

    @rule()
    def look(self) -> None:
        shown = table.current(self.state, self.moment)
        assert table.current(shown, self.moment) == shown
        assert shown.fence == self.state.fence
        assert bool(shown.grant) == self.is_live(self.state)
        for place in shown.queue:
            assert self.now < place.until
            assert place.claim.process not in self.dead
        # Who touches the key next passes it to the first that is shown, and drops nobody else shown.
        after, woken = table.settle(self.state, self.moment)
        heirs = [woken.claim.owner] if woken else []
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

    def take(self, step: Step, *, by: str, released: bool = False) -> Step:
        """Looks at what a transition did, beside the answer."""
        before, after = self.state, step.state
        self.others_are_left_alone(before, after, by)
        self.the_live_lease_is_left_alone(before, after, by)
        if step.woken:
            left = by if released else None
            assert step.woken.claim == self.first_who_lives(before, left), "not the first"
            self.a_hand_over_is_short(step)
        if after.grant and after.fence != before.fence:
            self.fences.append(after.fence)
        self.state = after
        return step

    def others_are_left_alone(self, before: KeyState, after: KeyState, by: str) -> None:
        """The order of the queue is kept, and only its end grows."""
        stayed = [place.claim.owner for place in after.queue if place.claim.owner != by]
        were = [place.claim.owner for place in before.queue if place.claim.owner != by]
        kept = iter(were)
        assert all(owner in kept for owner in stayed), "the queue was reordered, or grew a stranger"

    def the_live_lease_is_left_alone(self, before: KeyState, after: KeyState, by: str) -> None:
        if before.grant and before.grant.claim.owner != by and self.is_live(before):
            assert after.grant == before.grant

    def a_hand_over_is_short(self, step: Step) -> None:
        assert step.woken.until - self.now <= min(step.woken.claim.ttl, HANDOFF) + 1e-9
        assert not step.woken.confirmed
        assert step.woken.claim.process not in self.dead

    def first_who_lives(self, before: KeyState, left: str | None) -> Claim | None:
        """Who is next, where ``left`` has just given back what it had."""
        grant = before.grant
        unheard = grant and not grant.confirmed and grant.claim.owner != left
        silent = grant.claim.process if unheard else None
        for place in before.queue:
            lives = self.now < place.until and place.claim.process not in self.dead
            if lives and place.claim.owner != left and place.claim.process != silent:
                return place.claim
        return None

    def present(self) -> list[str]:
        there = [place.claim.owner for place in self.state.queue]
        return there + ([self.state.grant.claim.owner] if self.state.grant else [])

    def is_live(self, state: KeyState) -> bool:
        grant = state.grant
        return bool(grant) and self.now < grant.until and grant.claim.process not in self.dead

    def has_live_lease(self, owner: str, *, even_if_dead: bool = False) -> bool:
        grant = self.state.grant
        if grant is None or grant.claim.owner != owner or self.now >= grant.until:
            return False
        return even_if_dead or grant.claim.process not in self.dead

    def is_voided(self, owner: str) -> bool:
        return any(v.owner == owner and self.now < v.until for v in self.state.voided)

    @invariant()
    def nobody_is_there_twice(self) -> None:
        assert len(set(self.present())) == len(self.present())

    @invariant()
    def somebody_holds_what_somebody_waits_for(self) -> None:
        assert self.state.grant or not self.state.queue

    @invariant()
    def the_queue_is_bounded(self) -> None:
        assert len(self.state.queue) <= ROOM

    @invariant()
    def fences_increase(self) -> None:
        assert self.fences == sorted(set(self.fences))
        assert not self.state.grant or self.state.grant.fence == self.state.fence

    @invariant()
    def the_voided_are_not_there(self) -> None:
        assert not [owner for owner in self.present() if self.is_voided(owner)]


TestOneKey = OneKey.TestCase
TestOneKey.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
