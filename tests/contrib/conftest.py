from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
from fastapi import FastAPI

from tests.servers import Postgres
from tests.servers.postgres import shared_postgres
from tests.support.waiting import PATIENCE
from weblock import AsyncLocks
from weblock.contrib.fastapi import install
from weblock.contrib.kit import sql

from .shop import RecordingLocks, Shop

_numbers = itertools.count()


@pytest.fixture
def url() -> str:
    """An engine of this test's own."""
    return f"memory://contrib-{next(_numbers)}"


@pytest.fixture(autouse=True)
def _no_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No section deletes old rows, as one of 500 does: tests compare what is sent to a database."""
    monkeypatch.setattr(sql, "SWEEPS", 0.0)


@pytest.fixture
def shop() -> Shop:
    """A shop with room for three items."""
    return Shop()


@pytest.fixture
async def locks(url: str, shop: Shop) -> AsyncIterator[AsyncLocks]:
    """Locks that note releases among the shop's events."""
    async with RecordingLocks.from_url(url, wait=PATIENCE) as locks:
        locks.events = shop.events
        yield locks


@pytest.fixture
def app(locks: AsyncLocks) -> FastAPI:
    """An application with locks."""
    app = FastAPI()
    install(app, locks)
    return app


@pytest.fixture
def server() -> Postgres:
    """The PostgreSQL that tests share."""
    return shared_postgres()
