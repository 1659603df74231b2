from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from weblock import Locks

from .processes import Child


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "locks"


@pytest.fixture
def url(folder: Path) -> str:
    return f"file://{folder}"


@pytest.fixture
def locks(url: str) -> Iterator[Locks]:
    with Locks.from_url(url) as locks:
        yield locks


@pytest.fixture
def child(url: str) -> Iterator[Callable[..., Child]]:
    """Starts processes on the engine under test, which end with the test."""
    started: list[Child] = []

    def start(*, before: str = "") -> Child:
        started.append(Child(url, before=before))
        return started[-1]

    yield start
    for each in started:
        each.close()
