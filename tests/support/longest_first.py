"""Has each process of a run begin with tests that take long, so that none is left with one at the end.

xdist gives each process as long a stretch of the tests as any other, and who has nothing left to do takes
over the last ones of another. The rest is shuffled, a file at a time and always alike: tests of one folder
resemble each other, and while all processes wait at the same time, the processor idles.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from itertools import chain

import pytest

LONG = (
    "tests/faults/",
    "tests/platforms/test_bare.py",
    "tests/core/test_quorum_simulation.py",
    "tests/core/test_redis_store_simulation.py",
    "tests/core/test_simulation.py",
    "tests/contract/test_mutual_exclusion.py",
    "tests/engines/test_gevent.py",
    "tests/e2e/test_tutorials.py",
    "tests/e2e/test_versions.py",
    "tests/contrib/django/test_admin.py::test_in_a_browser",
    "tests/e2e/test_demo.py",
    "tests/test_benchmarks.py",
)
"""Where single tests take many seconds."""

TOGETHER = ("tests/e2e/test_versions.py",)
"""Of these, where all tests look at what one fixture takes long to make."""


def arrange(items: list[pytest.Item]) -> None:
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = _in_groups(sorted((item for item in items if _is_long(item)), key=_place))
    others = sorted((item for item in items if not _is_long(item)), key=_number_of_file)
    stretches, start = [], 0
    for number in range(processes):
        first = list(chain(*long[number::processes]))
        length = (len(items) - start) // (processes - number) - len(first)
        stretches.append(first + others[:length])
        del others[:length]
        start += len(stretches[-1])
    items[:] = chain(*stretches, others)


def _in_groups(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    """Those that one process is to run; most are alone."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        file = item.nodeid.partition("::")[0]
        groups.setdefault(file if file in TOGETHER else item.nodeid, []).append(item)
    return list(groups.values())


def _is_long(item: pytest.Item) -> bool:
    return item.nodeid.startswith(LONG)


def _number_of_file(item: pytest.Item) -> int:
    return zlib.crc32(item.nodeid.partition("::")[0].encode())


def _place(item: pytest.Item) -> int:
    return next(place for place, start in enumerate(LONG) if item.nodeid.startswith(start))
