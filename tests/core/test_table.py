"""The transitions of one key, by example."""

from __future__ import annotations

from tests.core.simulation.steps import lines_run_by
from weblock._core import table
from weblock._core.table import (
    HANDOFF,
    PLACE,
    SEEN,
    SHARED,
    Busy,
    Claim,
    Gone,
    Held,
    KeyState,
    Moment,
    Released,
    Voided,
    Waiting,
)

TTL = 10.0


def claim(owner: str, process: str = "p", ttl: float = TTL, limit: int = 1) -> Claim:
    return Claim(owner, process, ttl, "label", limit)


def reader(owner: str, process: str = "p", ttl: float = TTL) -> Claim:
    return claim(owner, process, ttl, SHARED)


def at(now: float, *dead: str, floor: int = 0) -> Moment:
    return Moment(now, floor, lambda process: process not in dead)


def after(*asked: Claim, room: int = 100) -> KeyState:
    """The state after these have asked for a free key at time 0."""
    state = KeyState()
    for each in asked:
        state = table.acquire(state, at(0), each, room=room).state
    return state


def holder(state: KeyState) -> str | None:
    """Who has the lease, be it over or not."""
    return state.grant.claim.owner if state.grant else None


def holders(state: KeyState) -> list[str]:
    return [grant.claim.owner for grant in state.grants]


def queued(state: KeyState) -> list[str]:
    return [place.claim.owner for place in state.queue]


def test_a_taken_key_queues() -> None:
    """Those who come later wait in their order, and are told who is before them."""
    state = after(claim("a", "p1"), claim("b", "p2"))
    step = table.acquire(state, at(1), claim("c", "p3"), room=100)
    assert step.answer == Waiting(1, 10, holder="label")
    assert list(table.processes_ahead(step.state, 1)) == ["p2", "p1"]
    assert queued(step.state) == ["b", "c"]


def test_places_that_have_lapsed_take_no_room() -> None:
    """A queue is full of those who still wait, not of those who stopped."""
    step = table.acquire(after(claim("a"), claim("b")), at(PLACE), claim("c"), room=1)
    assert queued(step.state) == ["c"]


def test_a_refusal_looks_at_a_few_places() -> None:
    """Those whom a long queue refuses find all that have lapsed in it, a few at a time."""
    waiting = [claim(f"waiter {number}") for number in range(10 * SEEN)]
    state, now, most = after(claim("a"), *waiting, room=10 * SEEN), PLACE, 0
    for _ in range(200):
        before = len(state.queue)
        assert isinstance(table.acquire(state, at(now), claim("y"), room=0).answer, Busy)
        state = table.acquire(state, at(now), claim("z"), room=1).state
        most = max(most, before - len(state.queue))
        now += 0.000_137
    assert queued(state) == ["z"]
    assert 0 < most <= SEEN


def test_a_silent_process_is_passed_over() -> None:
    """A process that does not confirm costs one hand-over, not one for each of its waiters."""
    asked = claim("a", "p1"), claim("b", "p2"), claim("c", "p2"), claim("d", "p3")
    state = table.release(after(*asked), at(1), "a").state
    state, woken = table.settle(state, at(1 + HANDOFF))
    assert (holder(state), queued(state)) == ("d", [])
    assert woken == state.grants


def test_dead_waiters_are_passed_over() -> None:
    """The key goes to the first who lives and has not lapsed."""
    state = after(claim("a", "p1"), claim("b", "p2"), claim("c", "p3"))
    step = table.release(state, at(1, "p2"), "a")
    assert (holder(step.state), queued(step.state)) == ("c", [])


def test_a_voided_owner_is_refused() -> None:
    """A request that arrives after its owner gave up gets nothing, until the void has passed."""
    state = table.release(KeyState(), at(0), "a", void=5).state
    assert not state.blank
    step = table.acquire(state, at(4.9), claim("a"), room=100)
    assert (step.answer, step.state.grant) == (Gone(), None)
    assert table.acquire(state, at(5), claim("a"), room=100).answer == Held(1, 15)


def test_an_owner_that_gives_up_again_is_voided_once() -> None:
    """However often a release is repeated, the key remembers its owner once, until the last void has passed."""
    state = table.release(KeyState(), at(0), "b", void=5).state
    for now in (0, 1, 2):
        state = table.release(state, at(now), "a", void=5).state
    assert state.voided == (Voided("b", 5), Voided("a", 7))


def test_force_takes_the_lease_and_passes_the_key_on() -> None:
    """The first waiter gets what was taken from the holder, with a larger fence; others stay."""
    state = after(claim("a"), claim("b"), claim("c"))
    step = table.force_release(state, at(1))
    assert (step.answer, holder(step.state), queued(step.state)) == (Released(), "b", ["c"])
    assert step.woken == step.state.grants
    assert step.state.fence == state.fence + 1
    assert table.refresh(step.state, at(1), "a", TTL).answer == Gone()
    assert table.release(step.state, at(1), "a").answer == Gone()


def test_a_look_shows_nobody_who_has_left() -> None:
    """Places that have lapsed, and those of the dead, are not shown, nor are voids that are over."""
    state = after(claim("a"), claim("b", "p2"), claim("c", "p3"))
    assert queued(table.current(state, at(1, "p2"))) == ["c"]
    assert queued(table.current(state, at(PLACE))) == []
    state = table.release(KeyState(), at(0), "a", void=5).state
    assert table.current(state, at(4.9)) == state
    assert table.current(state, at(5)).blank


def test_a_release_names_the_waiter_behind_a_place() -> None:
    """A waiter that watches the one before it learns that this one has left."""
    state = after(claim("a"), claim("b"), claim("c"))
    assert table.release(state, at(1), "b").following == claim("c")
    for owner in ("a", "c", "stranger"):
        assert table.release(state, at(1), owner).following is None


def test_as_many_as_the_limit_are_granted_at_once() -> None:
    """Each has a lease of its own, with a fence above those before; one more waits."""
    state = after(*(claim(owner, f"of {owner}", limit=3) for owner in "abc"))
    assert holders(state) == ["a", "b", "c"]
    assert [grant.fence for grant in state.grants] == [1, 2, 3]
    step = table.acquire(state, at(1), claim("d", limit=3), room=1)
    assert step.answer == Waiting(0, 10, holder="label", others=2)
    assert list(table.processes_ahead(step.state, 0)) == ["of a", "of b", "of c"]
    assert table.acquire(state, at(1), claim("d", limit=3), room=0).answer == Busy(
        10, 0, holder="label", others=2
    )


def test_the_asker_is_not_woken_for_what_its_answer_says() -> None:
    """A waiter whose own heartbeat lets it in with another hears it from the answer."""
    state = after(claim("w", ttl=2), reader("a"), reader("b"))
    step = table.refresh(state, at(2), "a", TTL)
    assert step.answer == Held(2, 12, confirmed=True)
    assert [grant.claim.owner for grant in step.woken] == ["b"]


def test_a_hand_over_takes_as_many_steps_whoever_waits() -> None:
    """A release to the first of 1,000 waiters, and a claim behind the last, run as many lines as with 8."""

    def steps(waiting: int) -> int:
        claims = (claim(f"{number}") for number in range(1 + waiting))
        state = after(*claims, room=waiting)

        def hand_over() -> None:
            left = table.release(state, at(1), "0").state
            table.acquire(left, at(1), claim("last"), room=waiting)

        return lines_run_by(hand_over)

    assert steps(1000) == steps(8) > 0
