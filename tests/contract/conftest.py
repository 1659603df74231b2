"""Every test runs on each engine that promises what the test is about, and on both APIs.

Two marks, and what an engine shares with another, spare what would be tested twice; with
``WEBLOCK_LONG=1`` nothing is spared.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.handovers import in_no_hurry
from tests.support.waiting import queue_of
from weblock import Locks
from weblock.stores.cells import CellStore

from .apis import APIS, Actor, AsyncioApi, BlockingApi
from .engines import ENGINES, OF_EACH_KIND, Promises
from .puppets import Puppet

LONG = "WEBLOCK_LONG" in os.environ

MARKS = (
    "promise(*names): runs on the engines that promise all of these",
    "of_core: is about what all engines share, so it runs on one engine of each kind",
    "costly: takes seconds or processes, so that it runs on one API of engines that resemble another",
)


def pytest_configure(config: pytest.Config) -> None:
    for mark in MARKS:
        config.addinivalue_line("markers", mark)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case for each engine that promises what the test wants, on each API that it asks for."""
    engines = _engines(metafunc.definition)
    if "promises" not in metafunc.fixturenames:
        return
    if "api" not in metafunc.fixturenames:
        metafunc.parametrize("promises", engines.values(), ids=engines)
        return
    cases = [
        pytest.param(promises, APIS[api], id=f"{name}-{api}")
        for name, promises in engines.items()
        for api in _apis(metafunc.definition, promises)
    ]
    metafunc.parametrize(("promises", "api"), cases, indirect=["api"])


def _engines(test: pytest.Item) -> dict[str, Promises]:
    wanted = [name for mark in test.iter_markers("promise") for name in mark.args]
    spared = test.get_closest_marker("of_core") and not LONG
    return {
        name: engine
        for name, engine in ENGINES.items()
        if all(getattr(engine, each) for each in wanted)
        and not (spared and name not in OF_EACH_KIND)
    }


def _apis(test: pytest.Item, promises: Promises) -> list[str]:
    if LONG:
        return list(APIS)
    if promises.api and test.get_closest_marker("costly"):
        return [promises.api]
    if promises.by_turns:
        return [promises.apis[zlib.crc32(test.name.encode()) % len(promises.apis)]]
    return list(promises.apis)


@pytest.fixture
def url(promises: Promises, request: pytest.FixtureRequest) -> str | list[str]:
    """The URL of an engine that nobody has used before."""
    # A folder takes as long to make as many a test, and most engines want none.
    folder = request.getfixturevalue("tmp_path") if promises.in_files else Path()
    return promises.fresh_url(folder)


@pytest.fixture
def api(request: pytest.FixtureRequest) -> Iterator[BlockingApi | AsyncioApi]:
    api = request.param()
    yield api
    api.close()


@pytest.fixture
def locks(api: BlockingApi | AsyncioApi, url: str) -> Iterator[Any]:
    locks = api.open(url)
    yield locks
    api.shut(locks)


@pytest.fixture
def probe(url: str) -> Iterator[Locks]:
    """Blocking locks for the test itself, beside its actors."""
    with Locks.from_url(url) as probe:
        yield probe


@pytest.fixture
def waiting(probe: Locks) -> Callable[[str], int | None]:
    """How many wait for a key; ``None`` if it is free."""
    return partial(queue_of, probe)


@pytest.fixture
def unhurried(locks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that is handed over lasts for its ttl, where it is this process that hands it over."""
    if isinstance(locks._locker.store, CellStore):  # The others' servers have a time of their own.
        in_no_hurry(monkeypatch)


@pytest.fixture
def one(api: BlockingApi | AsyncioApi) -> Actor:
    return api.actor()


@pytest.fixture
def other(api: BlockingApi | AsyncioApi) -> Actor:
    return api.actor()


@pytest.fixture
def tasks() -> Iterator[AsyncioApi]:
    """The asyncio API, for what only tasks can do, as being cancelled."""
    api = AsyncioApi()
    yield api
    api.close()


@pytest.fixture
def asynchronous(tasks: AsyncioApi, url: str) -> Iterator[Any]:
    locks = tasks.open(url)
    yield locks
    tasks.shut(locks)


@pytest.fixture
def puppet(api: BlockingApi | AsyncioApi, url: str) -> Iterator[Callable[..., Puppet]]:
    """Starts processes that lock on the engine under test, on the API under test."""
    started: list[Puppet] = []

    def start(**options: Any) -> Puppet:
        started.append(Puppet(api.name, url, options))
        return started[-1]

    yield start
    for each in started:
        each.close()
