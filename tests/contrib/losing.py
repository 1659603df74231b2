"""A lease that its holder finds lost, at a moment that the test chooses."""

from __future__ import annotations

from weblock import AsyncLease, Lease


def lose(lease: AsyncLease | Lease) -> None:
    """Has the keeper find that somebody else has taken the lease, at this very moment."""
    for holding in lease._holdings:
        holding.lose("taken")
