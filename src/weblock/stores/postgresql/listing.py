"""Leases that the columns of a row have no room for: those that are not exclusive.

The columns take one exclusive lease. All others are listed in the column ``waiting``, together with
the limits of waiters. An earlier version of weblock knows exclusive leases only. It takes the list
for the owner of an acquisition that was given up, and keeps it until its end. To such a version, the
other columns show one lease of nobody that ends with the last one in the list, so it grants nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..._core.table import Claim, Grant, KeyState, Voided

LISTED: Final = "*"
"""The owner in the columns where the leases are listed. No acquisition has such an owner."""

_MARK: Final = "+"
"""The first character of a list. No owner begins with it."""


class Listing(NamedTuple):
    """What is listed in a row."""

    grants: tuple[Grant, ...]
    limits: Mapping[str, int]
    """The limits of waiters, by owner; all others have 1."""


NOTHING_LISTED: Final = Listing((), {})


def in_columns(state: KeyState) -> Grant | None:
    """Return the lease that the columns show; ``None`` if there is none."""
    match state.grants:
        case ():
            return None
        case (grant,) if grant.claim.limit == 1 and grant.fence == state.fence:
            return grant
    oldest = state.grants[0]
    return Grant(
        Claim(LISTED, "", oldest.claim.ttl, oldest.claim.label),
        state.fence,
        oldest.since,
        max(grant.until for grant in state.grants),
        all(grant.confirmed for grant in state.grants),
    )


def listed(state: KeyState, shown: Grant | None, until: float) -> list[Voided]:
    """Return the list of what the columns, in which ``shown`` stands, leave out; empty if that is nothing.

    The list lasts until ``until``.
    """
    grants = state.grants if shown and shown.claim.owner == LISTED else ()
    claims = [place.claim for place in state.queue if place.claim.limit != 1]
    if not grants and not claims:
        return []
    limits = {claim.owner: claim.limit for claim in claims}
    text = json.dumps([[[*claim, *facts] for claim, *facts in grants], limits])
    return [Voided(_MARK + text, until)]


def listing_in(voided: Sequence[Sequence[Any]]) -> Listing:
    """Return what is listed among the owners that have given up."""
    for owner, _ in voided:
        if is_list(owner):
            grants, limits = json.loads(owner.removeprefix(_MARK))
            return Listing(tuple(map(_grant, grants)), limits)
    return NOTHING_LISTED


def is_list(owner: str) -> bool:
    """Return whether this is a list instead of an owner that has given up."""
    return owner.startswith(_MARK)


def _grant(fields: Sequence[Any]) -> Grant:
    *claim, fence, since, until, confirmed = fields
    return Grant(Claim(*claim), fence, since, until, confirmed)
