"""A request that hands its lock over to a worker, and answers 202 at once."""

from __future__ import annotations

from typing import Final

WORK: Final = 1.0
"""Seconds that a report takes."""

LONG_WORK: Final = 600.0
"""Seconds that one takes whose worker is killed meanwhile."""

ON_ITS_WAY: Final = 60.0
"""Seconds that a lease lasts between the request and the worker."""


def key_of(shop: int) -> str:
    """Return the key that is locked while the report of a shop is to be made."""
    return f"report:{shop}"
