"""Every test runs on each engine that promises what the test is about, and on both faces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import queue_of
from weblock import Locks

from .engines import ENGINES, Promises
from .faces import FACES, Actor, AsyncioFace, BlockingFace
from .puppets import Puppet


def pytest_configure(config: pytest.Config) -> None:
    """Makes the mark known."""
    config.addinivalue_line(
        "markers", "promise(*names): runs on the engines that promise all of these"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case for each engine that promises what the test wants, on each face that it asks for."""
    if "promises" in metafunc.fixturenames:
        wanted = [
            name for mark in metafunc.definition.iter_markers("promise") for name in mark.args
        ]
        fit = {
            name: engine
            for name, engine in ENGINES.items()
            if all(getattr(engine, each) for each in wanted)
        }
        metafunc.parametrize("promises", fit.values(), ids=fit.keys())
    if "face" in metafunc.fixturenames:
        metafunc.parametrize("face", FACES.values(), ids=FACES.keys(), indirect=True)


@pytest.fixture
def url(promises: Promises, tmp_path: Path) -> str:
    """The URL of an engine that nobody has used before."""
    return promises.fresh_url(tmp_path)


@pytest.fixture
def face(request: pytest.FixtureRequest) -> Iterator[BlockingFace | AsyncioFace]:
    """The face under test."""
    face = request.param()
    yield face
    face.close()


@pytest.fixture
def locks(face: BlockingFace | AsyncioFace, url: str) -> Iterator[Any]:
    """Locks of the face under test."""
    locks = face.open(url)
    yield locks
    face.shut(locks)


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
def one(face: BlockingFace | AsyncioFace) -> Actor:
    """A flow of control."""
    return face.actor()


@pytest.fixture
def other(face: BlockingFace | AsyncioFace) -> Actor:
    """Another flow of control."""
    return face.actor()


@pytest.fixture
def puppet(face: BlockingFace | AsyncioFace, url: str) -> Iterator[Callable[..., Puppet]]:
    """Starts processes that lock on the engine under test, on the face under test."""
    started: list[Puppet] = []

    def start(**options: Any) -> Puppet:
        started.append(Puppet(face.name, url, options))
        return started[-1]

    yield start
    for each in started:
        each.close()
