"""Servers that the tests of a module share, and names that no two of them do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from .sites import Server, serving

numbers = itertools.count()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case for each kind of server that the module names in ``SERVED``."""
    if "server" in metafunc.fixturenames:
        metafunc.parametrize("server", metafunc.module.SERVED, indirect=True, scope="module")


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server, for all tests of a module that do not end it."""
    with serving(request.param) as server:
        yield server


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"n{next(numbers)}"
