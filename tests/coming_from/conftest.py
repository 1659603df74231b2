"""What the page on migration shows: the code that was copied, and the line that replaces it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from tests.pages import blocks_of
from tests.servers import shared

PAGE = (Path(__file__).parents[2] / "docs" / "migrate.md").read_text()


@pytest.fixture
def shown() -> Callable[[str], SimpleNamespace]:
    """The names that the first two blocks of a section define: the copied code's and ours."""

    def names(section: str) -> SimpleNamespace:
        text = re.split(rf"^## {re.escape(section)}$", PAGE, maxsplit=1, flags=re.MULTILINE)[1]
        blocks = [block for block in blocks_of(text) if block.language == "python"]
        defined: dict[str, object] = {}
        for block in blocks[:2]:
            exec(compile(block.text, section, "exec"), defined)  # The page is ours.
        return SimpleNamespace(**defined)

    return names


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    """A client of a server on which nothing of another test is found."""
    with redis.Redis(port=shared().port) as client:
        for name in client.scan_iter("coming-from:*"):
            client.delete(name)
        yield client
