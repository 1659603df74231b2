"""What holds for all tests of the core."""

from __future__ import annotations

import pytest

TIMEOUT = 900
"""Seconds. These tests compute for up to 20 s, and a busy machine gives them a twentieth of a processor."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives each test of the core longer than what waits for servers has."""
    for item in items:
        if item.nodeid.startswith("tests/core/"):
            item.add_marker(pytest.mark.timeout(TIMEOUT))
