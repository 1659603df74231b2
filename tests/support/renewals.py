"""Renewals and ends of leases that a test need not wait for: the keeper does both when it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from weblock._core.holding import Holding
from weblock._core.ports import CheckAgain

from .waiting import eventually, now

if TYPE_CHECKING:
    import pytest

AT_ONCE: Final = 0.0
"""A time that is over on any clock."""

SOON: Final = 0.1
"""Seconds between two renewals that come often."""


def hurry(locks: Any, *leases: Any) -> None:
    """Has the keeper renew some leases now, or all of them, instead of after a third of the ttl."""
    _hurry(locks, _holdings(locks, leases))


def renewed(locks: Any, *leases: Any) -> None:
    """Returns when the keeper has renewed some leases, or all, which it does now. Raises ``LeaseLost``."""
    holdings = _holdings(locks, leases)
    _hurry(locks, holdings)
    eventually(lambda: all(map(_is_renewed, holdings)))


def end(locks: Any, *leases: Any) -> None:
    """Has some leases end now, or all of them, as at the end of their ttl; the engine has them still."""
    holdings = _holdings(locks, leases)
    for holding in holdings:
        holding.deadline = AT_ONCE
    _hurry(locks, holdings)


def renew_often(patch: pytest.MonkeyPatch | None = None) -> None:
    """Has this process renew all its leases again and again, however long their ttl is.

    With ``patch``, until that is undone; else for good, in a process of a test's own.
    """
    setter = patch.setattr if patch else setattr
    setter(Holding, "_next_renewal", _soon)


def deadlines(*leases: Any) -> list[float]:
    """Until when leases are held, one after the other."""
    return [holding.deadline for lease in leases for holding in lease._holdings]


def _holdings(locks: Any, leases: Sequence[Any]) -> Sequence[Holding]:
    if not leases:
        return [*locks._locker.keeper.holdings.values()]
    return [holding for lease in leases for holding in lease._holdings]


def _hurry(locks: Any, holdings: Sequence[Holding]) -> None:
    for holding in holdings:
        holding.due = AT_ONCE
    locks._locker.keeper._mailbox.put(CheckAgain())  # It starts no thread where there is none.


def _is_renewed(holding: Holding) -> bool:
    holding.check(now())
    return holding.due != AT_ONCE and not holding.at_risk


def _soon(holding: Holding, since: float) -> float:
    return since + SOON if holding.terms.renew else holding.deadline
