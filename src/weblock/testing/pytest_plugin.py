"""Fixtures, which pytest finds by itself where weblock is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def weblock_memory() -> Iterator[None]:
    """Locks in memory, on engines of the test's own: see ``weblock.testing.memory_locks``."""
    from .memory import memory_locks

    with memory_locks():
        yield
