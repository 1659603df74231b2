"""Waiting for conditions, with a deadline, and looking at a key from outside."""

from __future__ import annotations

import time
from collections.abc import Callable

from weblock import Locks, LockTimeout
from weblock._runtime.clock import now

from .faces import PATIENCE

__all__ = ["eventually", "now", "queue_of"]


def eventually(condition: Callable[[], object], *, within: float = PATIENCE) -> None:
    """Returns when ``condition`` is true; fails if it is not ``within`` so many seconds."""
    until = now() + within
    while not condition():
        assert now() < until, "what should have happened has not"
        time.sleep(0.002)


def queue_of(probe: Locks, key: str) -> int | None:
    """How many wait for ``key``; ``None`` if nobody holds it."""
    try:
        probe.acquire(key, wait=1, max_waiters=0).release()
    except LockTimeout as busy:
        return busy.waiters
    return None
