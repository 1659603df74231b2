"""Has each process of a run begin with tests that take long, so that none is left with one at the end.

xdist gives each process as long a stretch of the tests as any other, and who has nothing left to do takes
over the last ones of another. The rest is shuffled, a file at a time and always alike: tests of one folder
resemble each other, and while all processes wait at the same time, the processor idles.
"""

from __future__ import annotations

import os
import zlib
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


def arrange(items: list[pytest.Item]) -> None:
    """Puts these at the beginning of each stretch."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = sorted((item for item in items if _is_long(item)), key=_place)
    others = sorted((item for item in items if not _is_long(item)), key=_number_of_file)
    stretches, start = [], 0
    for number in range(processes):
        first = long[number::processes]
        length = (len(items) - start) // (processes - number) - len(first)
        stretches.append(first + others[:length])
        del others[:length]
        start += len(stretches[-1])
    items[:] = chain(*stretches, others)


def _is_long(item: pytest.Item) -> bool:
    return item.nodeid.startswith(LONG)


def _number_of_file(item: pytest.Item) -> int:
    return zlib.crc32(item.nodeid.partition("::")[0].encode())


def _place(item: pytest.Item) -> int:
    return next(place for place, start in enumerate(LONG) if item.nodeid.startswith(start))
