"""How long the way of a request is: calls, changes of file and lines, which no noise moves."""

import asyncio
import gc
import math
import sys
from collections import Counter
from contextvars import Context

import pytest
from fastapi import Depends, FastAPI

from tests.servers import fresh_url
from tests.support.way import OURS, Way
from weblock import AsyncLocks
from weblock.contrib.asgi import LockMiddleware, Rule
from weblock.contrib.fastapi import install, lock

from .wire import Exchange


async def way_of(app):
    """The way of a request when all that is done once has been done.

    It is the shortest of several, since what another test has left may end while one is counted.
    """
    ways = [Way() for _ in range(6)]
    for way in ways:
        exchange = Exchange(path="/items/7")
        with way.noted():
            await app(exchange.scope, exchange.receive, exchange.send)
        assert exchange.status == 200
    return min(ways, key=lambda way: (way.calls, way.changes))


async def way_of_a_request(url, *, locks_it=True):
    """The way of a request to an application on an engine, whose route locks, or does not."""
    app = FastAPI()
    locks = install(app, url)

    @app.post(
        "/items/{item_id}", dependencies=[Depends(lock("item:{item_id}"))] if locks_it else []
    )
    async def change(item_id: int) -> int:
        return item_id

    way = await way_of(app)
    await locks.close()
    return way


pytestmark = pytest.mark.skipif(
    sys.gettrace() is not None, reason="coverage or a debugger follows each call"
)


@pytest.mark.parametrize(
    ("locks_it", "calls", "changes"), [(True, 61, 44), (False, 16, 8)], ids=["locked", "unlocked"]
)
async def test_the_way_of_a_request_stays_short(url, locks_it, calls, changes):
    """No detour: a locked request takes at most 61 calls and 44 changes of file, another 16 and 8."""
    way = await way_of_a_request(url, locks_it=locks_it)
    assert way.calls <= calls
    assert way.changes <= changes


async def test_the_way_of_a_request_on_redis_stays_short():
    """A locked request on Redis takes at most 92 calls and 70 changes of file."""
    way = await way_of_a_request(fresh_url(timeout=3600))
    assert way.calls <= 92
    assert way.changes <= 70


async def serve_under(watch, note, app):
    """Serve a request while ``sys.settrace`` or ``sys.setprofile`` calls a function."""
    exchange = Exchange(path="/items/7")
    watch(note)
    try:
        await app(exchange.scope, exchange.receive, exchange.send)
    finally:
        watch(None)
    assert exchange.status == 200


async def lines_of(app):
    """The lines of Python that a request takes, whoever wrote them: the fewest, as in ``way_of``."""
    fewest = math.inf
    for _ in range(6):
        lines = 0

        def note(_frame, event, _argument):
            nonlocal lines
            lines += event == "line"
            return note

        gc.collect()
        await serve_under(sys.settrace, note, app)
        fewest = min(fewest, lines)
    return fewest


@pytest.mark.parametrize(
    ("way", "limit"),
    [("installed", 228), ("dependency", 931), ("rule", 709), ("other rule", 32)],
)
async def test_the_lines_that_a_request_takes_more_are_few(url, way, limit):
    """Whoever wrote them: what weblock makes asyncio, anyio and FastAPI run counts, too."""
    bare, app = FastAPI(), FastAPI()
    locks = AsyncLocks.from_url(url)
    needs = [Depends(lock("item:{item_id}"))] if way == "dependency" else []

    async def change(item_id: int) -> int:
        return item_id

    bare.post("/items/{item_id}")(change)
    app.post("/items/{item_id}", dependencies=needs)(change)
    if way in ("installed", "dependency"):
        install(app, locks)
    else:
        path = "/items/{item_id}" if way == "rule" else "/others/{item_id}"
        app = LockMiddleware(app, locks, [Rule(path, key="item:{item_id}")])
    # What other tests have left in the context would count: a layer looks at each of its variables.
    counts = [await asyncio.create_task(lines_of(each), context=Context()) for each in (app, bare)]
    more = counts[0] - counts[1]
    await locks.close()
    assert more <= limit


async def test_a_request_rarely_asks_for_its_process_and_its_event_loop(url):
    """Three times and twice: before Python 3.12, a question for the loop is a system call, too."""
    app = FastAPI()
    locks = install(app, url)

    @app.post("/items/{item_id}", dependencies=[Depends(lock("item:{item_id}"))])
    async def change(item_id: int) -> int:
        return item_id

    for _ in range(2):  # What is done once is done in the first.
        asked = Counter()

        def note(frame, event, function, asked=asked):
            if event == "c_call" and frame.f_code.co_filename.startswith(OURS):
                asked[function.__name__.removeprefix("_")] += 1

        await serve_under(sys.setprofile, note, app)
    await locks.close()
    assert asked["getpid"] <= 3
    assert asked["get_running_loop"] <= 2
