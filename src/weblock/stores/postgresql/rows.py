"""The contents of a row: how a key's state is read from it and written to it.

The columns hold the lease of a key that has one exclusive lease, because the statements compare and
renew that one. Everything else of a state is in ``rest``, as ``codec`` writes it: leases that are not
exclusive, the queue, and the owners that gave up. In most rows, ``rest`` is empty.
"""

from __future__ import annotations

import secrets
from typing import Any, Final, NamedTuple

from ..._core.table import Claim, Grant, KeyState, Place, Voided
from .. import codec

Row = tuple[Any, ...]
"""A row of a result."""


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

KEY: Final = 5
"""Which of them is the key."""


def reading_of(row: Row, table: str) -> Reading:
    """Return what the first columns of a row say, as ``statements`` selects them.

    Raises ``ConfigurationError`` for a row whose state has another format.
    """
    now, known, quiet, floor, news, key, version, *lease = row[:READ]
    state = KeyState() if version is None else _state(lease, f"the row {key!r:.80} of {table}")
    return Reading(key, state, version, now, known, quiet, floor, news or 0)


def written(reading: Reading, state: KeyState) -> dict[str, Any]:
    """Return the row that replaces a reading, for a new state."""
    if not state.grants or state.grants[0].fence > state.asked:
        state = state._replace(asked=0)  # It is of no use any more, and would fill ``rest``.
    claim, since, until, confirmed, rest = Claim("", "", 0.0, ""), 0.0, reading.now, True, state
    match state.grants:
        case (grant,) if grant.claim.limit == 1 and grant.fence == state.fence:
            claim, _, since, until, confirmed = grant
            rest = state._replace(grants=())
    lasting: list[Grant | Place | Voided] = [*state.grants, *state.queue, *state.voided]
    return {
        "key": reading.key,
        "seen": reading.version,
        "version": new_version(),
        "fence": state.fence,
        "owner": claim.owner,
        "process": claim.process,
        "label": label_of(claim),
        "ttl": claim.ttl,
        "since": since,
        "until": until,
        "confirmed": confirmed,
        "rest": "" if rest == KeyState(rest.fence) else codec.to_bytes(rest).decode(),
        "ends": max((each.until for each in lasting), default=0.0),
    }


def new_version() -> int:
    """Return a number that no version of any row had before."""
    return secrets.randbits(63)


def label_of(claim: Claim) -> str:
    """Return a claim's label without the characters that PostgreSQL's texts cannot contain."""
    return claim.label.replace("\0", "").encode(errors="replace").decode()


def _state(lease: list[Any], where: str) -> KeyState:
    fence, owner, process, label, ttl, since, until, confirmed, rest, _ends = lease
    state = codec.from_bytes(rest.encode(), where) if rest else KeyState()
    grants = state.grants
    if owner:
        grants = (Grant(Claim(owner, process, ttl, label), fence, since, until, confirmed),)
    return state._replace(fence=fence, grants=grants)
