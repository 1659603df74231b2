"""Renewals and ends of leases that a test need not wait for: the keeper does both when it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weblock._core.holding import Holding
from weblock._core.ports import Ask

from .waiting import eventually, now

AT_ONCE = 0.0
"""A time that is over on any clock."""


def hurry(locks: Any, lease: Any = None) -> None:
    """Has the keeper renew a lease now, or all of them, instead of after a third of the ttl."""
    _hurry(locks, _holdings(locks, lease))


def renewed(locks: Any, lease: Any = None) -> None:
    """Returns when the keeper has renewed a lease, or all, which it does now. Raises ``LeaseLost``."""
    holdings = _holdings(locks, lease)
    _hurry(locks, holdings)
    eventually(lambda: all(map(_is_renewed, holdings)))


def end(locks: Any, lease: Any = None) -> None:
    """Has a lease end now, or all of them, as at the end of its ttl; the engine has it still."""
    holdings = _holdings(locks, lease)
    for holding in holdings:
        holding.deadline = AT_ONCE
    _hurry(locks, holdings)


def _holdings(locks: Any, lease: Any) -> Sequence[Holding]:
    return [*(lease._holdings if lease else locks._locker.keeper.holdings.values())]


def _hurry(locks: Any, holdings: Sequence[Holding]) -> None:
    for holding in holdings:
        holding.due = AT_ONCE
    locks._locker.keeper._bell.ring(Ask())  # It starts no thread where there is none.


def _is_renewed(holding: Holding) -> bool:
    holding.check(now())
    return holding.due != AT_ONCE and not holding.at_risk
