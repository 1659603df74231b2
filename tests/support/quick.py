"""A pytest plugin: leaves out what takes long and proves the same again on another engine, API or seed."""

from __future__ import annotations

import os
import re

import pytest

LONG = re.compile(
    "mutant|test_what_it_does_not_bear|test_a_mistake_is_noticed|test_a_seed_decides"
    "|test_servers_that_forget_are_borne|test_without_recovery_two_hold|test_thousands_of_sections"
    "|test_fences_increase_though_servers_fail|test_servers_may_be_behind|test_the_same_seed_is_the_same"
)
"""Those that prove something of the simulator, not of the core; and many schedules, or many sections."""

ENGINES = {"memory", "file", "valkey"}


def pytest_configure() -> None:
    """Has the simulation run fewer seeds; the processes of a run inherit it."""
    os.environ["WEBLOCK_QUICK"] = "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = [item for item in items if _is_quick(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def _is_quick(item: pytest.Item) -> bool:
    """Whether it is short, on an engine of the quick ones, and processes are of one API."""
    if LONG.search(item.name):
        return False
    fixtures, words = getattr(item, "fixturenames", ()), set(re.split(r"[\[\]-]", item.name))
    if "promises" in fixtures and ENGINES.isdisjoint(words):
        return False
    return not ("puppet" in fixtures and "asyncio" in words)
