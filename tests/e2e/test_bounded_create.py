"""The bounded create, on real servers behind one address."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from demo.engine import engine_for
from demo.framework import FRAMEWORKS
from demo.outcome import BOUND
from demo.server import serving
from demo.story import run
from tests.servers import fresh_url

LONG = "WEBLOCK_LONG" in os.environ
ROUNDS = 3 if LONG else 1
REQUESTS = 200
WORKERS = 4


@pytest.mark.parametrize("engine", ["redis", *(["file"] if LONG else [])])
async def test_two_hundred_requests_never_exceed_the_bound(engine: str, tmp_path: Path) -> None:
    """Of 200 concurrent requests to 4 workers just 3 make an item, and all others are told why."""
    url = "file://" if engine == "file" else fresh_url()
    took_part = set()
    async with (
        engine_for(url, tmp_path) as opened,
        serving(
            tmp_path, opened, FRAMEWORKS["fastapi"], workers=WORKERS, locked=True
        ) as application,
    ):
        for _ in range(ROUNDS):
            done = await run(application, REQUESTS)

            told = Counter(answer.code or answer.text for answer in done.answers)
            made = {f"item {number}" for number in range(1, BOUND + 1)}
            assert done.items == BOUND
            assert done.at_once == 1
            assert {text: told.pop(text, 0) for text in made} == dict.fromkeys(made, 1)
            # Who waited for longer than the lock's patience was told that instead.
            assert set(told) <= {f"limit reached: {BOUND} items", "lock_timeout"}
            assert told.total() == REQUESTS - BOUND
            took_part |= {section.worker for section in done.sections}
    assert len(took_part) == WORKERS
