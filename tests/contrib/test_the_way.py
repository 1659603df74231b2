"""How long the way of a request is: calls and changes of file, which no noise moves."""

import gc
import os
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from fastapi import Depends, FastAPI

import weblock
from weblock.contrib.fastapi import install, lock

from .wire import Exchange

OURS = str(Path(weblock.__file__).parent) + os.sep


class Way:
    """The files of weblock whose functions are called, in their order."""

    def __init__(self):
        self.files = []

    def note(self, frame, event, _argument):
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            self.files.append(frame.f_code.co_filename)

    @property
    def changes(self):
        return sum(one != other for one, other in pairwise(self.files))


async def way_of(app):
    """The way of a request when all that is done once has been done."""
    way = Way()
    gc.collect()  # Else what other tests have left may be finalized while we count.
    for count in range(3):
        if count == 2:
            sys.setprofile(way.note)
        try:
            exchange = Exchange(path="/items/7")
            await app(exchange.scope, exchange.receive, exchange.send)
        finally:
            sys.setprofile(None)
        assert exchange.status == 200
    return way


@pytest.mark.skipif(sys.gettrace() is not None, reason="coverage or a debugger follows each call")
@pytest.mark.parametrize(
    ("locks_it", "calls", "changes"), [(True, 100, 45), (False, 25, 15)], ids=["locked", "unlocked"]
)
async def test_the_way_of_a_request_stays_short(url, locks_it, calls, changes):
    """No detour: a locked request takes at most 100 calls and 45 changes of file, another 25 and 15."""
    app = FastAPI()
    locks = install(app, url)

    @app.post(
        "/items/{item_id}", dependencies=[Depends(lock("item:{item_id}"))] if locks_it else []
    )
    async def change(item_id: int) -> int:
        return item_id

    way = await way_of(app)
    await locks.close()
    assert len(way.files) <= calls
    assert way.changes <= changes
