"""What the pages show: the code that was copied, and the line that replaces it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from tests.pages import blocks_of
from tests.servers import shared

PAGES = Path(__file__).parents[2] / "docs" / "coming-from"


@pytest.fixture
def shown() -> Callable[[str], SimpleNamespace]:
    """The names that the first two blocks of a page define: the copied code's and ours."""

    def names(page: str) -> SimpleNamespace:
        blocks = [b for b in blocks_of((PAGES / page).read_text()) if b.language == "python"]
        defined: dict[str, object] = {}
        for block in blocks[:2]:
            exec(compile(block.text, page, "exec"), defined)  # The page is ours.
        return SimpleNamespace(**defined)

    return names


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    """A client of a server on which nothing of another test is found."""
    with redis.Redis(port=shared().port) as client:
        for name in client.scan_iter("coming-from:*"):
            client.delete(name)
        yield client
