"""The contents of a row: how a key's state is read from it and written to it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ..._core.ports import Grasp
from ..._core.table import Claim, Grant, KeyState, Place, Voided
from .listing import (
    LISTED,
    NOTHING_LISTED,
    Listing,
    in_columns,
    is_list,
    listed,
    listing_in,
)

Row = Sequence[bytes | None]
"""A row of a result, in PostgreSQL's text format."""


class Reading(NamedTuple):
    """The state of a key as a statement read it, and what was known of the server then."""

    key: str
    state: KeyState
    version: int | None
    """``None`` where there is no row."""
    now: float
    known: bool
    """Whether the server is the one that the table knows, and has lost nothing."""
    quiet: float
    """Until when it grants nothing."""
    floor: int
    """No fence of a row that was removed was above this."""
    news: int
    """Which news of the server this is: another number whenever it was found to have lost leases."""


READ: Final = 17
"""The number of columns that a reading is made from."""


def reading_of(row: Row) -> Reading:
    """Return what the first columns of a row say, as ``statements`` selects them."""
    now, known, quiet, floor, news, key, version, *lease = row[:READ]
    state = KeyState() if version is None else _state(lease)
    return Reading(
        text_of(key),
        state,
        None if version is None else int(version),
        _number(now),
        known == b"t",
        _number(quiet),
        int(floor or 0),
        int(news or 0),
    )


def written(reading: Reading, state: KeyState) -> dict[str, Any]:
    """Return the row that replaces a reading, for a new state."""
    grant = in_columns(state)
    claim = grant.claim if grant else Claim("", "", 0.0, "")
    ends = [place.until for place in state.queue]
    ends += [voided.until for voided in state.voided]
    ends += [each.until for each in state.grants]
    voided = [*state.voided, *listed(state, grant, max(ends, default=0.0))]
    waiting = ""
    asked = state.asked if grant and state.grants[0].fence <= state.asked else 0
    if state.queue or voided or asked:
        places = [[*place.claim[:4], place.until] for place in state.queue]
        waiting = json.dumps([places, voided, asked])
    return {
        "key": reading.key,
        "seen": reading.version,
        "version": new_version(),
        "fence": state.fence,
        "owner": claim.owner,
        "process": claim.process,
        "label": label_of(claim),
        "ttl": claim.ttl,
        "since": grant.since if grant else 0.0,
        "until": grant.until if grant else reading.now,
        "confirmed": grant.confirmed if grant else True,
        "waiting": waiting,
        "ends": max(ends, default=0.0),
    }


def new_version() -> int:
    """Return a number that no version of any row had before."""
    return secrets.randbits(63)


def label_of(claim: Claim) -> str:
    """Return a claim's label without the characters that PostgreSQL's texts cannot contain."""
    return claim.label.replace("\0", "").encode(errors="replace").decode()


def granted_in(waiting: bytes, process: str) -> list[tuple[str, Grasp]]:
    """Return the waiters of a process that have been granted a lease that is listed there."""
    _, voided, _ = json.loads(waiting or "[[], [], 0]")
    return [
        (claim.owner, Grasp(fence, until))
        for claim, fence, _, until, confirmed in listing_in(voided).grants
        if claim.process == process and not confirmed
    ]


def _state(lease: Row) -> KeyState:
    fence, owner, process, label, ttl, since, until, confirmed, waiting, _ends = lease
    places, voided, asked = json.loads(waiting) if waiting else ((), (), 0)
    listing = listing_in(voided) if voided else NOTHING_LISTED
    grants: tuple[Grant, ...] = ()
    if owner == LISTED.encode():
        grants = listing.grants
    elif owner:
        claim = Claim(text_of(owner), text_of(process), _number(ttl), text_of(label))
        fresh = confirmed == b"t"
        grants = (Grant(claim, int(fence or 0), _number(since), _number(until), fresh),)
    return KeyState(
        int(fence or 0),
        grants,
        tuple(_place(each, listing) for each in places),
        tuple(Voided(*each) for each in voided if not is_list(each[0])),
        asked,
    )


def _place(fields: Sequence[Any], listing: Listing) -> Place:
    owner, process, ttl, label, until = fields
    return Place(Claim(owner, process, ttl, label, listing.limits.get(owner, 1)), until)


def text_of(value: bytes | None) -> str:
    """Return a text of a row; an empty one for none."""
    return (value or b"").decode()


def _number(value: bytes | None) -> float:
    return float(value or 0)
