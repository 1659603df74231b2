"""Renewals that come soon, so that a test sees one without waiting for a third of a long ttl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tests.support.waiting import eventually
from weblock._core.holding import Holding

if TYPE_CHECKING:
    import pytest

SOON: Final = 0.1
"""Seconds between two renewals."""


def renew_often(patch: pytest.MonkeyPatch | None = None) -> None:
    """Has this process renew its leases often, however long their ttl is.

    With ``patch``, until that is undone; else for good, in a process of a test's own.
    """
    setter = patch.setattr if patch else setattr
    setter(Holding, "_next_renewal", _soon)


def deadlines(leases: Sequence[Any]) -> list[float]:
    """Until when leases are held, one after the other."""
    return [holding.deadline for lease in leases for holding in lease._holdings]


def until_renewed(*leases: Any) -> None:
    """Returns when each of the leases has been renewed from now on; fails if one is lost."""
    before = deadlines(leases)

    def all_are_later() -> bool:
        for lease in leases:
            lease.check()
        return all(new > old for old, new in zip(before, deadlines(leases), strict=True))

    eventually(all_are_later)


def _soon(holding: Holding, since: float) -> float:
    return since + SOON if holding.terms.renew else holding.deadline
