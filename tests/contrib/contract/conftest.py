"""Each test runs on each framework to which the promise applies that it shows."""

from __future__ import annotations

import importlib
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine
from sqlalchemy.pool import NullPool

from tests.servers import fresh_url
from tests.support.waiting import eventually, waiters
from weblock import Locks
from weblock.contrib.sqlalchemy import fence_table

from .driver import Driver, Site

DRIVERS = {
    "asgi": ["Driver"],
    "wsgi": ["Driver"],
    "fastapi": ["Driver"],
    "litestar": ["Driver"],
    "django": ["Wsgi", "Asgi"],
    "flask": ["Driver"],
    "celery": ["Driver"],
}
"""The classes of each module in ``drivers``."""

_numbers = itertools.count()


def drivers() -> list[type[Driver]]:
    """Return all of them, in the order of the table."""
    return [
        getattr(importlib.import_module(f".drivers.{module}", __package__), name)
        for module, names in DRIVERS.items()
        for name in names
    ]


def pytest_configure(config: pytest.Config) -> None:
    """Makes the mark known."""
    config.addinivalue_line("markers", "shows(promise): shows a promise of the adapters")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case for each driver that does not exempt the framework from the promise of the test."""
    mark = metafunc.definition.get_closest_marker("shows")
    if mark:
        cases = [each for each in drivers() if mark.args[0] not in each.exempt]
        metafunc.parametrize("driver", cases, ids=[each.name for each in cases])


@pytest.fixture(params=["memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An engine of this test's own."""
    match request.param:
        case "memory":
            return f"memory://contract-{next(_numbers)}"
        case "file":
            return f"file://{tmp_path}/locks"
        case _:
            return fresh_url()


@pytest.fixture
def probe(url: str) -> Iterator[Locks]:
    """The engine, seen from outside of the application."""
    with Locks.from_url(url, wait=0) as probe:
        yield probe


@pytest.fixture
def waiting(probe: Locks) -> Callable[[int], None]:
    """Returns when so many requests wait for ``item:7``."""

    def waiting(count: int) -> None:
        eventually(lambda: waiters(probe, "item:7") == count)

    return waiting


@pytest.fixture
def serve(
    driver: type[Driver], url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Driver]]:
    """Serves an application that does what the test says: see ``Site``."""
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        database.execute("CREATE TABLE row (id INTEGER PRIMARY KEY, number INTEGER NOT NULL)")
        database.execute("INSERT INTO row VALUES (7, 1)")
        database.commit()
    fence_table(tables := MetaData())
    tables.create_all(create_engine(f"sqlite:///{tmp_path}/shop.sqlite", poolclass=NullPool))
    with ExitStack() as stack:
        if driver.folder == "django":  # Whose databases no test can use that does not say so.
            stack.enter_context(request.getfixturevalue("django_db_blocker").unblock())

        def serve(**given: Any) -> Driver:
            site = Site(**{"url": url, "folder": tmp_path, **given})
            return stack.enter_context(driver(site))

        yield serve
