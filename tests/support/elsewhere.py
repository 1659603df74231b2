"""Has each process of a run begin to collect elsewhere, so that none compiles what another has compiled.

In a fresh checkout a process needs three times as long to compile the tests, and what they import, as to import them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def begin(config: pytest.Config) -> None:
    """Rotates the files, where a process of several is to collect them all."""
    worker = getattr(config, "workerinput", None)
    if worker is None or [config.rootpath / each for each in config.args] != [TESTS]:
        return
    files = sorted(map(str, TESTS.rglob("test_*.py")))
    number = int(worker["workerid"].removeprefix("gw"))
    start = len(files) * number // worker["workercount"]
    config.args[:] = files[start:] + files[:start]


def end(items: list[pytest.Item]) -> None:
    """Sorts what has been collected, for all processes must agree on it."""
    items.sort(key=lambda item: item.path)
