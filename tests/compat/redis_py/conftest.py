"""redis-py's own cases for its lock, as they are there, on weblock's.

``test_lock.py`` is redis-py's, under its ``LICENSE``, and not a letter in it is changed. ``DIFFERENT``
is all that fails, on purpose: the page ``docs/migrate.md`` has each, with its reason. The lock for asyncio
is the source of this one, so the cases of one are enough.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.servers import shared
from weblock import Locks
from weblock.compat import redis as compat

from .differences import DIFFERENT
from .onlooker import Client, NotedLock, Onlooker

RECENT = "raise_on_release_error"
"""A parameter of the lock that not every redis-py in our range has."""


def pytest_configure(config: pytest.Config) -> None:
    """Makes redis-py's mark known."""
    config.addinivalue_line("markers", "onlynoncluster: redis-py's, for what is not of a cluster")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What differs has to fail; if it passes, it does not differ, and the page is wrong.

    The cases are those of the newest redis-py: an older one lacks a parameter.
    """
    options = inspect.signature(redis.Redis.lock).parameters
    for item in items:
        if not item.nodeid.startswith("tests/compat/redis_py/"):
            continue
        if item.name in DIFFERENT:
            item.add_marker(pytest.mark.xfail(reason=DIFFERENT[item.name], strict=True))
        if "not_raise_on_release" in item.name and RECENT not in options:
            item.add_marker(pytest.mark.skip(reason=f"this redis-py has no {RECENT}"))


@pytest.fixture(scope="session")
def port() -> int:
    """A server on which nothing has to be waited for any more."""
    with redis.Redis(port=shared().port) as client, Locks.from_client(client) as locks:
        locks.acquire("first", wait=60).release()
    return shared().port


@pytest.fixture(autouse=True)
def lock_of_weblock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes the import."""
    monkeypatch.setattr(request.module, "Lock", NotedLock)


@pytest.fixture
def r(request: pytest.FixtureRequest) -> Client:
    """As it is called there."""
    return _get_client(redis.Redis, request)


@pytest.fixture
def onlooker(port: int) -> Iterator[Onlooker]:
    """Somebody else."""
    onlooker = Onlooker(port)
    yield onlooker
    onlooker.close()


def _get_client(_kind: type, request: pytest.FixtureRequest, **options: Any) -> Client:
    """As it is called there."""
    client = Client(port=request.getfixturevalue("port"), **options)
    client.made, client.onlooker = [], request.getfixturevalue("onlooker")
    client.case = request.node.name

    def close() -> None:
        compat.close(client)
        client.close()

    request.addfinalizer(close)
    return client
