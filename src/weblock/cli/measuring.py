"""What is measured on an engine: its round trip, a hand-off, and how fair a crowd is treated."""

from __future__ import annotations

import time

from .. import Locks


def round_trip(locks: Locks) -> float:
    """Return the seconds that the engine takes for an answer. Raises ``EngineUnavailable``."""
    began = time.perf_counter()
    locks.inspect("weblock ping")
    return time.perf_counter() - began
