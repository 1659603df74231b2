"""A pytest plugin: runs modules in a random order, and so the tests of each.

A seed decides the order. The tests of a module stay together, for they share servers.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order", type=int, required=True, help="the seed of the order of the tests")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffles alike in every process of a run, which must agree on the order."""
    dice = Random(config.getoption("--order"))
    modules = defaultdict(list)
    for item in items:
        modules[item.path].append(item)
    shuffled = [modules[path] for path in dice.sample(sorted(modules), len(modules))]
    items[:] = [item for tests in shuffled for item in dice.sample(tests, len(tests))]
