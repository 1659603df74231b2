"""The state of one key in an engine, and all that may happen to it.

A ``KeyState`` is a small value: the leases, the queue behind them, and the last fence. Each operation
is a pure function from a state and a time to a new state, an answer, and the waiters to notify. An
engine is an atomic cell for such values, with a way to notify a process.

    acquire --------- it fits, no queue ----------> Grant, confirmed <----- refresh (renewed)
       |                                              ^          |
       +-- else --> Place <-- refresh              refresh       +-- release, or until has passed
                      |                               |          v
                      +-- first, and it fits --> Grant, HANDOFF --> the next place

A claim has a ``limit``: how many leases the key may have while its own is one of them. That is 1 for an
exclusive lease, and ``SHARED`` for one that excludes only those with a smaller limit. A claim fits if
there are fewer leases than the smallest limit among it and them.

Four rules make it safe and fair:

- A lease belongs to its owner until ``until``, on the engine's clock, and to no caller afterwards.
- The first operation on a key of which a lease has ended lets the first live waiter in if it fits,
  then the next one, up to the first that does not.
- No claim overtakes a waiter: a new one is granted at once only if it fits and the queue is empty.
- Each lease gets a fence above all fences before it.

Each operation can be repeated, because a lost answer must not matter: an owner that asks again keeps
its lease, with its fence, or its place. An owner that no longer wants the key although a request of its
own may still arrive is ``Voided``: that request is rejected.

A lease that is handed over to a waiter is short at first (``HANDOFF``) and unconfirmed. The process of
the waiter confirms it with its next heartbeat. A process that is stopped or dead does not, which costs
the others ``HANDOFF`` seconds, not a whole ttl.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Final, NamedTuple

HANDOFF: Final = 1.5
"""Seconds that a waiter's process has to confirm a lease that was handed to it."""

SHARED: Final = 2**31 - 1
"""The limit of a shared lease: a number that no count of leases reaches."""

PLACE: Final = 4.0
"""Seconds that a place in the queue lasts without a heartbeat."""

SEEN: Final = 16
"""Places of a full queue that one claim checks, to find some that have lapsed."""


class Claim(NamedTuple):
    """One acquisition of a key."""

    owner: str
    process: str
    ttl: float
    label: str
    limit: int = 1
    """How many leases the key may have while this is one of them."""


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


_NOBODY: Final[dict[str, Place]] = {}


class KeyState(NamedTuple):
    fence: int = 0
    grants: tuple[Grant, ...] = ()
    """In the order of their fences."""
    places: dict[str, Place] = _NOBODY
    """The queue in its order, by the waiters' owners: a waiter enters and leaves it without a search.

    Like all of a state, it is replaced, never changed.
    """
    voided: tuple[Voided, ...] = ()
    asked: int = 0
    """The holders up to this fence were asked to release. It may stay: later fences are larger."""

    @property
    def grant(self) -> Grant | None:
        """The oldest lease, if there is one: the only one, unless its limit is above 1."""
        return self.grants[0] if self.grants else None

    @property
    def queue(self) -> tuple[Place, ...]:
        return tuple(self.places.values())

    @property
    def blank(self) -> bool:
        """Whether nothing but the fence is worth remembering."""
        return not self.grants and not self.places and not self.voided


@dataclass(slots=True)
class Moment:
    """What an engine knows when it is asked.

    ``now`` is its own clock, in seconds; ``fence_floor`` the lowest fence that it may give;
    ``alive`` says whether a process lives (an engine that cannot tell answers yes, and time
    decides).
    """

    now: float
    fence_floor: int
    alive: Callable[[str], bool] = lambda _process: True
    grants: bool = True
    """Whether the engine may grant leases. While it recovers, it rejects each step that does."""


class Held(NamedTuple):
    fence: int
    until: float
    confirmed: bool = True
    asked: bool = False
    """Whether another caller has asked for its release: see ``ask_release``."""


class Waiting(NamedTuple):
    """The caller is in the queue, until ``until`` at least unless a holder releases.

    ``recovering`` says why the engine grants nothing at the moment, if the caller waits for that and not
    for another lease. ``holder`` is the label of the oldest lease, if the engine tells it, and
    ``others`` how many leases there are besides.
    """

    position: int
    until: float
    recovering: str = ""
    holder: str = ""
    others: int = 0


class Busy(NamedTuple):
    """Other callers have the key, and this one is not in the queue.

    ``until`` is the earliest end of a lease. ``elsewhere`` says that other servers of a quorum may have
    let it in, so that it must release. ``recovering`` says why no caller would get the key; ``holder``
    and ``others`` say who has it, as in ``Waiting``.
    """

    until: float
    waiters: int
    elsewhere: bool = False
    recovering: str = ""
    holder: str = ""
    others: int = 0


class Gone(NamedTuple):
    """The caller has no lease and no place."""


class Released(NamedTuple):
    """The caller had the lease until now."""


class Asked(NamedTuple):
    """The holders learn with their next heartbeats that another caller wants the key."""


Answer = Held | Waiting | Busy | Gone | Released | Asked

GONE: Final = Gone()
RELEASED: Final = Released()
ASKED_ALL: Final = Asked()


@dataclass(slots=True)
class Step:
    """The outcome of an operation; ``woken`` are the waiters that have just got a lease.

    ``following`` is the waiter directly behind a place that was given back.
    """

    state: KeyState
    answer: Answer
    woken: tuple[Grant, ...] = ()
    following: Claim | None = None


def acquire(state: KeyState, moment: Moment, claim: Claim, *, room: int) -> Step:
    """Grant the key if the claim fits, else queue the claim if fewer than ``room`` wait.

    Places that have lapsed count until an operation finds them: see ``_without_some_lapsed``.
    Asking again is harmless: an owner that has a lease keeps it, with its fence, for a ttl from
    now; one that is in the queue keeps its place.
    """
    woken: tuple[Grant, ...] = ()
    if state.grants or state.places or state.voided:
        state, woken = settle(state, moment)
        if any(voided.owner == claim.owner for voided in state.voided):
            return Step(state, GONE, woken)
    grants = state.grants
    # Then nobody waits, either: the first that does has just been given a lease.
    if not grants:
        granted = _granted(state, moment, claim, claim.ttl, confirmed=True)
        return Step(granted, Held(granted.fence, moment.now + claim.ttl))
    places = state.places
    if claim.owner in places or _grant_of(state, claim.owner):
        return _refreshed(state, moment, claim.owner, claim.ttl, woken)
    if claim.limit > 1 and not places and fits(claim, grants):
        granted = _granted(state, moment, claim, claim.ttl, confirmed=True)
        return Step(granted, Held(granted.fence, moment.now + claim.ttl), woken)
    if 0 < room <= len(places):
        places = _without_some_lapsed(places, moment)
        state = state._replace(places=places)
    if len(places) >= room:
        label, others = grants[0].claim.label, len(grants) - 1
        busy = Busy(_earliest_end(grants), len(places), holder=label, others=others)
        return Step(state, busy, woken)
    waiting = _waiting(grants, len(places))
    places = places.copy()
    places[claim.owner] = Place(claim, moment.now + PLACE)
    return Step(state._replace(places=places), waiting, woken)


def refresh(state: KeyState, moment: Moment, owner: str, ttl: float) -> Step:
    """Process a heartbeat: confirm and renew the owner's lease, or keep its place in the queue.

    It never shortens a lease, and never brings back one that has ended: that answers ``Gone``. A holder
    renews its own lease and changes nothing else; the heartbeats of waiters let in who fits.
    """
    if (mine := _grant_of(state, owner)) and _lives(mine, moment):
        return _refreshed(state, moment, owner, ttl, ())
    state, woken = settle(state, moment)
    return _refreshed(state, moment, owner, ttl, woken)


def refresh_many(
    state: KeyState, moment: Moment, beats: Sequence[tuple[str, float]]
) -> tuple[KeyState, list[Answer], tuple[Grant, ...]]:
    """Process the heartbeats of several owners, each with its ttl, as ``refresh`` does one by one.

    Returns the new state, the answers, and the leases of other waiters that were let in. One pass
    serves all heartbeats: the time does not grow with the number of leases times that of heartbeats.
    """
    woken: tuple[Grant, ...] = ()
    places, positions = state.places, dict[str, int]()
    holders = {each.claim.owner for each in state.grants if _lives(each, moment)}
    if any(owner not in holders for owner, _ in beats):
        state, woken = settle(state, moment)
        places = state.places.copy()
        positions = dict(zip(places, count(), strict=False))
    grants = list(state.grants)
    leases = {grant.claim.owner: index for index, grant in enumerate(grants)}
    answers: list[Answer] = []
    for owner, ttl in beats:
        if (index := leases.get(owner)) is not None:
            until = max(grants[index].until, moment.now + ttl)
            grants[index] = grants[index]._replace(until=until, confirmed=True)
            answers.append(_held(grants[index], state))
        elif place := places.get(owner):
            places[owner] = place._replace(until=moment.now + PLACE)
            answers.append(_waiting(grants, positions[owner]))
        else:
            answers.append(GONE)
    owners = {owner for owner, _ in beats}
    woken = tuple(grant for grant in woken if grant.claim.owner not in owners)
    return state._replace(grants=tuple(grants), places=places), answers, woken


def release(state: KeyState, moment: Moment, owner: str, *, void: float = 0) -> Step:
    """Take back what the owner has, lease or place, and pass the key on.

    With ``void``, a late request of the same owner is rejected for this many seconds: for an owner
    that gave up without knowing what became of its request.
    """
    answer: Answer = GONE
    woken: tuple[Grant, ...] = ()
    following: Claim | None = None
    grants, places = state.grants, state.places
    if owner in places:  # An owner has a lease or a place, never both.
        behind = islice(places.values(), list(places).index(owner) + 1, None)
        following = next((place.claim for place in behind), None)
        places = places.copy()
        del places[owner]
        state = state._replace(places=places)
    for index, mine in enumerate(grants):
        if mine.claim.owner == owner:
            if moment.now < mine.until:
                answer = RELEASED
            left = grants[:index] + grants[index + 1 :]
            state = KeyState(state.fence, left, places, state.voided, state.asked)
            break
    if void > 0:
        others = [each for each in state.voided if each.owner != owner]
        state = state._replace(voided=(*others, Voided(owner, moment.now + void)))
    if state.grants or state.places or state.voided:
        state, woken = settle(state, moment)
    return Step(state, answer, woken, following)


def force_release(state: KeyState, moment: Moment) -> Step:
    """Take the leases away from all holders, and pass the key on.

    Returns ``Released`` if there was a lease, ``Gone`` if there was none or all had ended.
    """
    answer: Answer = GONE
    ended = tuple(grant for grant in state.grants if not _lives(grant, moment))
    if len(ended) < len(state.grants):
        answer = RELEASED
        state = state._replace(grants=ended)
    state, woken = settle(state, moment)
    return Step(state, answer, woken)


def ask_release(state: KeyState, moment: Moment) -> Step:
    """Ask the holders to release the key; return ``Gone`` if there is none.

    Each of them learns it with its next heartbeat. Later holders do not.
    """
    state, woken = settle(state, moment)
    if not state.grants:
        return Step(state, GONE, woken)
    return Step(state._replace(asked=state.fence), ASKED_ALL, woken)


def transfer(state: KeyState, moment: Moment, owner: str, claim: Claim) -> Step:
    """Make the lease of ``owner`` that of a claim, with the same fence, for the claim's ttl from now.

    Its limit stays as it is, whatever the claim says. Asking again is harmless: a claim that has the
    lease keeps it, and it is never shortened. Returns ``Gone`` if neither has it.
    """
    state, woken = settle(state, moment)
    until = moment.now + claim.ttl
    if any(voided.owner == claim.owner for voided in state.voided):
        return Step(state, GONE, woken)
    if grant := _grant_of(state, claim.owner):
        until = max(until, grant.until)
    else:
        grant = _grant_of(state, owner)
    if grant is None:
        return Step(state, GONE, woken)
    claim = claim._replace(limit=grant.claim.limit)
    moved = Grant(claim, grant.fence, grant.since, until, confirmed=True)
    return Step(_exchanged(state, grant, moved), _held(moved, state), _without(woken, owner))


def current(state: KeyState, moment: Moment) -> KeyState:
    """Return a state without leases that have ended, and without places that have lapsed.

    For observers. A key of which a lease has ended is passed on by the next operation on it, not here.
    """
    grants, places = _lasting(state, moment)
    processes = {place.claim.process for place in places.values()}
    dead = {process for process in processes if not moment.alive(process)}
    places = {
        owner: place
        for owner, place in places.items()
        if moment.now < place.until and place.claim.process not in dead
    }
    voided = tuple(each for each in state.voided if moment.now < each.until)
    return state._replace(grants=grants, places=places, voided=voided)


def fits(claim: Claim, grants: tuple[Grant, ...]) -> bool:
    """Return whether a claim may have a lease together with these."""
    return len(grants) < min(claim.limit, _least_limit(grants))


def settle(state: KeyState, moment: Moment) -> tuple[KeyState, tuple[Grant, ...]]:
    """Drop the leases that have ended, and let in who fits now; return their leases, too."""
    if state.voided:
        voided = tuple(each for each in state.voided if moment.now < each.until)
        state = state._replace(voided=voided)
    grants = state.grants
    if grants and grants[0].claim.limit == 1 and _lives(grants[0], moment):
        return state, ()  # No claim fits.
    grants, places = _lasting(state, moment)
    return _let_in(state._replace(grants=grants, places=places), moment)


def _let_in(state: KeyState, moment: Moment) -> tuple[KeyState, tuple[Grant, ...]]:
    grants, places = state.grants, state.places.copy()
    number, room = len(grants), _least_limit(grants)
    for claim, until in state.places.values():
        if number >= room:
            break
        if moment.now < until and moment.alive(claim.process):
            if number >= claim.limit:
                break
            length = min(claim.ttl, HANDOFF)
            state = _granted(state, moment, claim, length, confirmed=False)
            number, room = number + 1, min(room, claim.limit)
        del places[claim.owner]
    return state._replace(places=places), state.grants[len(grants) :]


def _lasting(state: KeyState, moment: Moment) -> tuple[tuple[Grant, ...], dict[str, Place]]:
    """Return the leases that have not ended, and the queue behind them.

    A process that let a lease end that it had not confirmed is taken for stopped. Its places are
    dropped, so it costs the others ``HANDOFF`` seconds once, not once for each place.
    """
    lasting = tuple(grant for grant in state.grants if _lives(grant, moment))
    if len(lasting) == len(state.grants):
        return state.grants, state.places
    kept = {grant.fence for grant in lasting}
    ended = [grant for grant in state.grants if grant.fence not in kept]
    silent = {grant.claim.process for grant in ended if not grant.confirmed}
    if not silent:
        return lasting, state.places
    places = state.places.items()
    return lasting, {owner: each for owner, each in places if each.claim.process not in silent}


def _lives(grant: Grant, moment: Moment) -> bool:
    return moment.now < grant.until and moment.alive(grant.claim.process)


def _without_some_lapsed(places: dict[str, Place], moment: Moment) -> dict[str, Place]:
    """Return a full queue without the lapsed ones among ``SEEN`` of its places.

    Which places are checked depends on the microsecond, so that all are checked in time. Checking
    all of them each time would let rejected callers keep the engine busy.
    """
    start = round(moment.now * 1e6) % max(1, len(places) - SEEN + 1)
    left = places.copy()
    for claim, until in islice(places.values(), start, start + SEEN):
        if until <= moment.now:
            del left[claim.owner]
    return left


def _granted(
    state: KeyState, moment: Moment, claim: Claim, length: float, *, confirmed: bool
) -> KeyState:
    fence = max(state.fence + 1, moment.fence_floor)
    grant = Grant(claim, fence, moment.now, moment.now + length, confirmed)
    # Without ``_replace``, which takes twice as long: each acquisition comes here.
    return KeyState(fence, (*state.grants, grant), state.places, state.voided, state.asked)


def _refreshed(
    state: KeyState, moment: Moment, owner: str, ttl: float, woken: tuple[Grant, ...]
) -> Step:
    if mine := _grant_of(state, owner):
        renewed = mine._replace(until=max(mine.until, moment.now + ttl), confirmed=True)
        return Step(_exchanged(state, mine, renewed), _held(renewed, state), _without(woken, owner))
    if place := state.places.get(owner):
        places = state.places.copy()
        places[owner] = place._replace(until=moment.now + PLACE)
        waiting = _waiting(state.grants, list(places).index(owner))
        return Step(state._replace(places=places), waiting, woken)
    return Step(state, GONE, woken)


def holds(state: KeyState, moment: Moment, owner: str) -> bool:
    """Return whether the owner has a lease that has not ended."""
    grant = _grant_of(state, owner)
    return grant is not None and _lives(grant, moment)


def _grant_of(state: KeyState, owner: str) -> Grant | None:
    for grant in state.grants:
        if grant.claim.owner == owner:
            return grant
    return None


def _exchanged(state: KeyState, old: Grant, new: Grant) -> KeyState:
    return state._replace(grants=tuple(new if each is old else each for each in state.grants))


def _without(woken: tuple[Grant, ...], owner: str) -> tuple[Grant, ...]:
    return tuple(grant for grant in woken if grant.claim.owner != owner)


def _least_limit(grants: tuple[Grant, ...]) -> int:
    return min([grant.claim.limit for grant in grants], default=SHARED)


def _earliest_end(grants: Sequence[Grant]) -> float:
    if len(grants) == 1:
        return grants[0].until
    return min([grant.until for grant in grants])


def _held(grant: Grant, state: KeyState) -> Held:
    return Held(grant.fence, grant.until, grant.confirmed, grant.fence <= state.asked)


def _waiting(grants: Sequence[Grant], position: int) -> Waiting:
    label, others = grants[0].claim.label, len(grants) - 1
    return Waiting(position, _earliest_end(grants), holder=label, others=others)


def processes_ahead(state: KeyState, position: int) -> Iterator[str]:
    """Yield the processes before a waiter: those of waiters, nearest first, then those of holders."""
    places = islice(reversed(state.places.values()), len(state.places) - position, None)
    told: set[str] = set()
    for claim in chain((each.claim for each in places), (each.claim for each in state.grants)):
        if claim.process not in told:
            told.add(claim.process)
            yield claim.process
