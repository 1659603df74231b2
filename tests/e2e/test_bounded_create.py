"""The bounded create, on real servers with several workers."""

from __future__ import annotations

from collections import Counter

from demo.outcome import BOUND
from demo.server import serving
from demo.story import run_once

ROUNDS = 3
REQUESTS = 200
WORKERS = 4


async def test_two_hundred_requests_never_exceed_the_bound() -> None:
    """Of 200 concurrent requests to 4 workers just 3 make an item, and all others are told why."""
    took_part = set()
    async with serving(workers=WORKERS, locked=True) as server:
        for _ in range(ROUNDS):
            run = await run_once(server, REQUESTS)

            told = Counter(answer.code or answer.text for answer in run.answers)
            made = {f"item {number}" for number in range(1, BOUND + 1)}
            assert run.items == BOUND
            assert run.at_once == 1
            assert {text: told.pop(text, 0) for text in made} == dict.fromkeys(made, 1)
            # Who waited for longer than the lock's patience was told that instead.
            assert set(told) <= {f"limit reached: {BOUND} items", "lock_timeout"}
            assert told.total() == REQUESTS - BOUND
            took_part |= {section.worker for section in run.sections}
    assert len(took_part) == WORKERS
