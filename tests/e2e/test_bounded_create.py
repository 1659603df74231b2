"""The bounded create, on real servers with several workers."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from demo import trace
from demo.load import create_items
from demo.server import serving

BOUND = 3
ROUNDS = 5
REQUESTS = 200


@pytest.fixture(scope="module")
def server():
    """The demo's application, locked, with four workers."""
    with (
        tempfile.TemporaryDirectory(prefix="wl-") as directory,
        serving(Path(directory) / "app", workers=4, locked=True) as running,
    ):
        yield running


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_two_hundred_requests_never_exceed_the_bound(server, round_):
    """Of 200 concurrent requests to 4 workers just 3 make an item, and all others are told why."""
    server.start_anew()
    statuses = Counter(answer.status for answer in asyncio.run(create_items(server.url, REQUESTS)))
    assert server.items() == BOUND
    assert statuses[201] == BOUND
    assert statuses[201] + statuses[422] + statuses[409] == REQUESTS
    assert trace.most_at_once(trace.read(server.trace)) == 1
