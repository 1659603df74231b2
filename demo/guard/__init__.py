"""A holder that sleeps through its lease: what it commits afterwards, without the guard and with it."""

from __future__ import annotations

from typing import Final

TTL: Final = 2.0
"""Seconds that a lease lasts here, so that nobody has to watch for long while it runs out."""

WORK: Final = 0.5
"""Seconds that a request works before it adds an item; the holder is stopped meanwhile."""
