"""Waits for conditions, with a deadline that only a hang misses, and watches queues from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from weblock import Locks, LockTimeout
from weblock._runtime.runtimes import now

__all__ = ["PATIENCE", "eventually", "now", "pause_after", "queue_of", "waiters"]

PATIENCE = 60.0 * float(os.environ.get("WEBLOCK_TEST_PATIENCE", "1"))
"""Seconds, for what takes milliseconds on an idle machine: no test fails because a machine is slow."""


def eventually(
    condition: Callable[[], object],
    *,
    within: float = PATIENCE,
    despite: type[Exception] | tuple[type[Exception], ...] = (),
) -> None:
    """Returns when ``condition`` is true; fails if it is not ``within`` so many seconds.

    The exceptions in ``despite`` mean "not yet".
    """
    began = now()
    while not _holds(condition, despite):
        waited = now() - began
        assert waited < within, "what should have happened has not"
        time.sleep(pause_after(waited))


def pause_after(waited: float) -> float:
    """Seconds until one who has waited for a condition looks again: what takes long is not polled busily."""
    return min(0.02, max(0.002, waited / 10))


def waiters(locks: Locks, key: str) -> int:
    info = locks.inspect(key)
    return len(info.waiters) if info else 0


def queue_of(probe: Locks, key: str) -> int | None:
    """The number that a caller who is refused is told; ``None`` if nobody holds ``key``."""
    try:
        probe.acquire(key, wait=1, max_waiters=0).release()
    except LockTimeout as busy:
        return busy.waiters
    return None


def _holds(
    condition: Callable[[], object], despite: type[Exception] | tuple[type[Exception], ...]
) -> bool:
    try:
        return bool(condition())
    except despite:
        return False
