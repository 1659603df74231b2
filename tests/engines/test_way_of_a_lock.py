"""How long the way of an acquire and a release is: calls, which no noise moves."""

from __future__ import annotations

import re
import sys
import uuid
from pathlib import Path
from types import FrameType

import pytest

from tests.servers import fresh_url
from tests.support.way import Way
from weblock import AsyncLocks, Locks

pytestmark = pytest.mark.skipif(
    sys.gettrace() is not None, reason="coverage or a debugger follows each call"
)

BOUNDS = {"memory": (30, 28), "redis": (47, 55)}
"""Calls on the blocking and on the asyncio API."""


def url_of(engine: str) -> str:
    """An engine that nobody has used; no timer of its connections is due while the collector runs."""
    return fresh_url(timeout=3600) if engine == "redis" else f"memory://{uuid.uuid4().hex}"


@pytest.mark.parametrize("engine", BOUNDS)
def test_the_way_of_a_blocking_lock_stays_short(engine: str) -> None:
    """No detour: an acquire and a release of a free key make only so many calls."""
    ways: list[int] = []
    with Locks.from_url(url_of(engine)) as locks:
        for _ in range(5):  # What is done once, or now and then, is not counted each time.
            way = Way()
            with way.noted():
                locks.acquire("a").release()
            ways.append(way.calls)
    assert min(ways) <= BOUNDS[engine][0]


@pytest.mark.parametrize("engine", BOUNDS)
async def test_the_way_of_a_lock_on_asyncio_stays_short(engine: str) -> None:
    """No detour: an acquire and a release of a free key make only so many calls."""
    ways: list[int] = []
    async with AsyncLocks.from_url(url_of(engine)) as locks:
        for _ in range(5):
            way = Way()
            with way.noted():
                await (await locks.acquire("a")).release()
            ways.append(way.calls)
    assert min(ways) <= BOUNDS[engine][1]


def test_the_page_shows_the_way() -> None:
    """The architecture page has the functions that a blocking acquire and release on Redis call."""
    page = Path(__file__).parents[2] / "docs" / "dev" / "architecture.md"
    ways = []
    with Locks.from_url(url_of("redis")) as locks:
        for _ in range(5):
            way = Way()
            with way.noted():
                locks.acquire("a").release()
            ways.append(way)
    text = min(ways, key=lambda way: way.calls).text
    shown = re.search(r"```text\n(sync\.py.*?)\n```", page.read_text(), re.DOTALL)
    assert shown
    assert shown[1] == text, f"{page} is to show:\n{text}"


def test_a_lock_on_memory_makes_few_named_tuples() -> None:
    """Of what an acquire and a release of a free key hand on, only what is kept or compared is one.

    To make a named tuple runs its ``__new__``, and takes twice as long as an object with slots.
    """
    made: list[int] = []

    def count(frame: FrameType, event: str, _arg: object) -> None:
        code = frame.f_code
        made[-1] += (event, code.co_filename, code.co_name) == ("call", "<string>", "<lambda>")

    with Locks.from_url(url_of("memory")) as locks:
        for _ in range(5):
            made.append(0)
            sys.setprofile(count)
            try:
                locks.acquire("a").release()
            finally:
                sys.setprofile(None)
    assert min(made) == 5
