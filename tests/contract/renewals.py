"""Renewals that a test need not wait for: the keeper sends them when it is told to."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.support.waiting import eventually
from weblock._core.ports import Ask

AT_ONCE = 0.0
"""A time that is over on any clock."""


def hurry(locks: Any, lease: Any) -> None:
    """Has the keeper renew a lease now, instead of after a third of its ttl."""
    for holding in lease._holdings:
        holding.due = AT_ONCE
    locks._locker.keeper._bell.ring(Ask())  # It starts no thread where there is none.


def renewed(locks: Any, lease: Any) -> None:
    """Returns when the keeper has renewed a lease, which it does now. Raises ``LeaseLost``."""
    hurry(locks, lease)
    eventually(partial(_is_renewed, lease))


def _is_renewed(lease: Any) -> bool:
    lease.check()
    return all(each.due != AT_ONCE and not each.at_risk for each in lease._holdings)
