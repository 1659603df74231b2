"""What every adapter promises: promises 10 to 16 of the design, and how a refusal is answered.

A test names the promise that it shows, by ``@shows(COMMIT)``. A driver says which promises do not apply
to its framework, and why. The table in docs/guarantees.md is made of both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

COMMIT = "The lock is released after the work has been committed"
FAILED_COMMIT = "A COMMIT that fails is not reported as done"
SLOW_CLIENT = "A slow client does not keep the lock"
STREAM = "A stream is made inside the lock"
ERROR = "A handler that fails releases the lock"
THREADS = "Waiting requests leave the holder the threads that it needs"
LEAVES_QUEUE = "A client that disconnects stops waiting"
RUNS_TO_ITS_END = (
    "A handler that has begun runs to its end inside the lock, even if its client leaves"
)
LOST = "A request whose lease was lost is not reported as done"
ROLLED_BACK = "Its transaction is rolled back"
SPELLINGS = "No spelling of a URL reaches a locked handler without its lock"
BAD_KEY = "A key that cannot be made is refused, and nothing runs"
STALE = 'The COMMIT of a stale holder fails with `guard="database"`'
FRESH = "Rows that were read before the lock are read again"
SEVERAL = "Several keys are held together, and requests for them do not deadlock"
HELD_ALREADY = "A key that the request holds already is not waited for"
DECLINED = "A key function that returns `None` locks nothing"
BUSY = "A busy key is answered with 409, or fails with `LockTimeout`"
TIMING = "The response says how long the request waited"
DOWN = "An engine that is down is answered with 503, or fails with `EngineUnavailable`"

PROMISES = {
    COMMIT: 10,
    FAILED_COMMIT: 10,
    SLOW_CLIENT: 10,
    STREAM: 10,
    ERROR: 10,
    THREADS: 11,
    LEAVES_QUEUE: 12,
    RUNS_TO_ITS_END: 12,
    LOST: 13,
    ROLLED_BACK: 13,
    SPELLINGS: 14,
    BAD_KEY: 14,
    STALE: 15,
    FRESH: 16,
    SEVERAL: 6,
    HELD_ALREADY: 6,
    DECLINED: 6,
    BUSY: 6,
    DOWN: 6,
    TIMING: 17,
}
"""Each with its number in the design."""


def shows(promise: str) -> Callable[[Any], Any]:
    """Mark a test with the promise that it shows."""
    assert promise in PROMISES
    return pytest.mark.shows(promise)
