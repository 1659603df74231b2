"""The truth about one key, and what may happen to it.

A ``KeyState`` is a small value: the lease, the queue behind it, and the last fence. Every
operation is a pure function from a state and a time to a new state, an answer, and at most one
waiter to notify. An engine is an atomic cell for such values, and a bell.

Three rules make it safe:

- a lease belongs to its owner until ``until``, on the engine's own clock, and to no one afterwards;
- the first operation on a key whose lease has ended passes it to the first live waiter, and only
  to it;
- every lease gets a fence above all fences before it.

A lease that is handed over to a waiter is short at first (``HANDOFF``) and unconfirmed. The
waiter's process confirms it with its next heartbeat. A process that is stopped or gone does not,
and then it costs the others ``HANDOFF`` seconds, not its whole ttl.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final, NamedTuple

HANDOFF: Final = 1.5
"""Seconds that a waiter's process has to confirm a lease that was handed to it."""

PLACE: Final = 4.0
"""Seconds that a place in the queue lasts without a heartbeat."""

COMMIT: Final = 0.25
"""Seconds after which it is asked again whether a former holder's transaction has ended."""

SEEN: Final = 16
"""Places of a full queue that one claim checks, to find some that have lapsed."""


class Claim(NamedTuple):
    """One acquisition that wants a key, known by its secret owner."""

    owner: str
    process: str
    ttl: float
    label: str


class Grant(NamedTuple):
    """A lease, as the engine knows it. Times are seconds on the engine's clock."""

    claim: Claim
    fence: int
    since: float
    until: float
    confirmed: bool


class Place(NamedTuple):
    """A waiter's place in the queue, which ends at ``until`` unless it is refreshed."""

    claim: Claim
    until: float


class Voided(NamedTuple):
    """An owner that has given up; a late request of its own is rejected until ``until``."""

    owner: str
    until: float


class KeyState(NamedTuple):
    fence: int = 0
    grant: Grant | None = None
    queue: tuple[Place, ...] = ()
    voided: tuple[Voided, ...] = ()

    @property
    def blank(self) -> bool:
        """Whether nothing but the fence is worth remembering."""
        return self.grant is None and not self.queue and not self.voided


class Moment(NamedTuple):
    """What an engine knows when it is asked.

    ``now`` is its own clock, in seconds; ``fence_floor`` the lowest fence that it may give;
    ``alive`` says whether a process lives (an engine that cannot tell answers yes, and time
    decides). ``committing`` says that a former holder's transaction has checked its lease and has not
    ended yet: until then nobody is granted the key, whatever the time. Only an engine in a database
    can know of one.
    """

    now: float
    fence_floor: int
    alive: Callable[[str], bool] = lambda _process: True
    committing: bool = False


class Held(NamedTuple):
    """The caller has the lease."""

    fence: int
    until: float
    confirmed: bool = True


class Waiting(NamedTuple):
    """The caller is in the queue. ``ahead`` names the processes in front of it, nearest first.

    ``recovering`` says why the engine grants nothing at the moment, if the caller waits for that
    and not for another lease. ``holder`` is the label of that lease, if the engine tells it.
    """

    position: int
    until: float
    ahead: tuple[str, ...]
    recovering: str = ""
    holder: str = ""


class Busy(NamedTuple):
    """Another caller has the lease, and this one is not in the queue.

    ``elsewhere`` says that other servers of a quorum may have let it in, so that it must release;
    ``recovering``, as in ``Waiting``, says why no caller would get the key, and ``holder`` who has it.
    """

    until: float
    waiters: int
    elsewhere: bool = False
    recovering: str = ""
    holder: str = ""


class Gone(NamedTuple):
    """The engine knows nothing of the caller: no lease, no place."""


class Released(NamedTuple):
    """The caller had the lease, and has given it back."""


Answer = Held | Waiting | Busy | Gone | Released

GONE: Final = Gone()
RELEASED: Final = Released()


class Step(NamedTuple):
    """The outcome of an operation; ``woken`` is a waiter that has just got the lease."""

    state: KeyState
    answer: Answer
    woken: Grant | None = None


def acquire(state: KeyState, moment: Moment, claim: Claim, *, room: int) -> Step:
    """Grant the key if it is free, else queue the claim if fewer than ``room`` wait.

    Places that have lapsed count until an operation finds them: see ``_without_some_lapsed``.
    Asking again is harmless: an owner that has the lease keeps it, with its fence, for a ttl from
    now; one that is in the queue keeps its place.
    """
    state, woken = settle(state, moment)
    if state.voided and any(voided.owner == claim.owner for voided in state.voided):
        return Step(state, GONE, woken)
    grant = state.grant
    # Then nobody waits, either: the first that does has just been given the lease.
    if grant is None:
        granted = _granted(state, moment, claim, claim.ttl, confirmed=True)
        return Step(granted, Held(granted.fence, moment.now + claim.ttl))
    if _holds(state, claim.owner) or _waits(state, claim.owner):
        return _refreshed(state, moment, claim.owner, claim.ttl, woken)
    queue = state.queue
    if 0 < room <= len(queue):
        queue = _without_some_lapsed(queue, moment)
        state = KeyState(state.fence, grant, queue, state.voided)
    if len(queue) >= room:
        return Step(state, Busy(grant.until, len(queue), holder=grant.claim.label), woken)
    queue = (*queue, Place(claim, moment.now + PLACE))
    state = KeyState(state.fence, grant, queue, state.voided)
    return Step(state, _waiting(state, len(queue) - 1), woken)


def refresh(state: KeyState, moment: Moment, owner: str, ttl: float) -> Step:
    """Process a heartbeat: confirm and renew the owner's lease, or keep its place in the queue.

    It never shortens a lease, and never brings back one that has ended: that answers ``Gone``.
    """
    state, woken = settle(state, moment)
    return _refreshed(state, moment, owner, ttl, woken)


def release(state: KeyState, moment: Moment, owner: str, *, void: float = 0) -> Step:
    """Take back what the owner has, lease or place, and pass the key on.

    With ``void``, a late request of the same owner is rejected for this many seconds: for an owner
    that gave up without knowing what became of its request.
    """
    answer: Answer = GONE
    if _holds(state, owner):
        if state.grant is not None and moment.now < state.grant.until:
            answer = RELEASED
        state = KeyState(state.fence, None, state.queue, state.voided)
    else:
        queue = tuple(place for place in state.queue if place.claim.owner != owner)
        state = state._replace(queue=queue)
    if void > 0:
        state = state._replace(voided=(*state.voided, Voided(owner, moment.now + void)))
    state, woken = settle(state, moment)
    return Step(state, answer, woken)


def force_release(state: KeyState, moment: Moment) -> Step:
    """Take the lease away from its holder, and pass the key on.

    Returns ``Released`` if there was a lease, ``Gone`` if there was none or it had ended.
    """
    answer: Answer = GONE
    if state.grant is not None and _lives(state.grant, moment):
        answer = RELEASED
        state = state._replace(grant=None)
    state, woken = settle(state, moment)
    return Step(state, answer, woken)


def transfer(state: KeyState, moment: Moment, owner: str, claim: Claim) -> Step:
    """Make the lease of ``owner`` that of a claim, with the same fence, for the claim's ttl from now.

    Asking again is harmless: a claim that has the lease keeps it, and it is never shortened. Returns
    ``Gone`` if neither has it.
    """
    state, woken = settle(state, moment)
    grant, until = state.grant, moment.now + claim.ttl
    if grant is None or any(voided.owner == claim.owner for voided in state.voided):
        return Step(state, GONE, woken)
    if grant.claim.owner == claim.owner:
        until = max(until, grant.until)
    elif grant.claim.owner != owner:
        return Step(state, GONE, woken)
    grant = Grant(claim, grant.fence, grant.since, until, confirmed=True)
    state = KeyState(state.fence, grant, state.queue, state.voided)
    return Step(state, _held(state))


def current(state: KeyState, moment: Moment) -> KeyState:
    """Return a state without leases that have ended, and without places that have lapsed.

    For observers. A key whose lease has ended is passed on by the next operation on it, not here.
    """
    grant, queue = state.grant, state.queue
    if grant is not None and not _lives(grant, moment):
        grant, queue = None, _behind(grant, queue)
    processes = {place.claim.process for place in queue}
    dead = {process for process in processes if not moment.alive(process)}
    queue = tuple(
        place for place in queue if moment.now < place.until and place.claim.process not in dead
    )
    voided = tuple(each for each in state.voided if moment.now < each.until)
    return KeyState(state.fence, grant, queue, voided)


def behind(state: KeyState, owner: str) -> Claim | None:
    """Return the claim that waits directly behind the place of ``owner``, if both exist."""
    if not _holds(state, owner):
        for place, following in pairwise(state.queue):
            if place.claim.owner == owner:
                return following.claim
    return None


def settle(state: KeyState, moment: Moment) -> tuple[KeyState, Grant | None]:
    """Pass the key on if its lease has ended, and return to which claim."""
    if state.voided:
        voided = tuple(each for each in state.voided if moment.now < each.until)
        state = state._replace(voided=voided)
    grant = state.grant
    if grant is not None and moment.now < grant.until and moment.alive(grant.claim.process):
        return state, None
    if moment.committing:
        return _kept_for_a_commit(state, moment), None
    if grant is None and not state.queue:
        return state, None
    queue = _from_first_live(_behind(grant, state.queue), moment)
    state = KeyState(state.fence, None, queue[1:], state.voided)
    if not queue:
        return state, None
    claim = queue[0].claim
    length = min(claim.ttl, HANDOFF)
    state = _granted(state, moment, claim, length, confirmed=False)
    return state, state.grant


def _kept_for_a_commit(state: KeyState, moment: Moment) -> KeyState:
    """Return a state whose lease goes on; if it was released already, a lease that nobody has."""
    grant = state.grant
    if grant is None:
        claim = Claim("committing", "", COMMIT, "a transaction that has not ended")
        grant = Grant(claim, state.fence, moment.now, moment.now, confirmed=True)
    grant = grant._replace(until=moment.now + COMMIT)
    return KeyState(state.fence, grant, state.queue, state.voided)


def _lives(grant: Grant, moment: Moment) -> bool:
    return moment.now < grant.until and moment.alive(grant.claim.process)


def _behind(grant: Grant | None, queue: tuple[Place, ...]) -> tuple[Place, ...]:
    """Return the queue after a lease has ended: a process that never confirmed loses its places."""
    if grant is None or grant.confirmed:
        return queue
    return tuple(place for place in queue if place.claim.process != grant.claim.process)


def _without_some_lapsed(queue: tuple[Place, ...], moment: Moment) -> tuple[Place, ...]:
    """Return a full queue without the lapsed ones among ``SEEN`` of its places.

    Which places are checked depends on the microsecond, so that all are checked in time. Checking
    all of them each time would let rejected callers keep the engine busy.
    """
    start = round(moment.now * 1e6) % max(1, len(queue) - SEEN + 1)
    seen = queue[start : start + SEEN]
    left = tuple(place for place in seen if moment.now < place.until)
    return (*queue[:start], *left, *queue[start + SEEN :])


def _from_first_live(queue: tuple[Place, ...], moment: Moment) -> tuple[Place, ...]:
    for index, place in enumerate(queue):
        if moment.now < place.until and moment.alive(place.claim.process):
            return queue[index:]
    return ()


def _granted(
    state: KeyState, moment: Moment, claim: Claim, length: float, *, confirmed: bool
) -> KeyState:
    fence = max(state.fence + 1, moment.fence_floor)
    grant = Grant(claim, fence, moment.now, moment.now + length, confirmed)
    return KeyState(fence, grant, state.queue, state.voided)


def _refreshed(
    state: KeyState, moment: Moment, owner: str, ttl: float, woken: Grant | None
) -> Step:
    if _holds(state, owner) and state.grant is not None:
        until = max(state.grant.until, moment.now + ttl)
        state = state._replace(grant=state.grant._replace(until=until, confirmed=True))
        return Step(state, _held(state))
    for position, place in enumerate(state.queue):
        if place.claim.owner == owner:
            kept = place._replace(until=moment.now + PLACE)
            queue = (*state.queue[:position], kept, *state.queue[position + 1 :])
            state = state._replace(queue=queue)
            return Step(state, _waiting(state, position), woken)
    return Step(state, GONE, woken)


def _holds(state: KeyState, owner: str) -> bool:
    return state.grant is not None and state.grant.claim.owner == owner


def _waits(state: KeyState, owner: str) -> bool:
    return bool(state.queue) and any(place.claim.owner == owner for place in state.queue)


def _held(state: KeyState) -> Held:
    assert state.grant is not None
    return Held(state.grant.fence, state.grant.until, state.grant.confirmed)


def _waiting(state: KeyState, position: int) -> Waiting:
    assert state.grant is not None
    before = {place.claim.process: None for place in reversed(state.queue[:position])}
    before[state.grant.claim.process] = None
    return Waiting(position, state.grant.until, tuple(before), holder=state.grant.claim.label)
