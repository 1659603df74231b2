"""Fixtures, which pytest finds by itself where weblock is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def weblock_memory() -> Iterator[None]:
    """Locks of Django in memory, on engines of the test's own; all other options stay."""
    from ..contrib.django.testing import memory_locks

    with memory_locks():
        yield
