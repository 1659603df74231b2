"""What something costs, as the lines of Python that it runs: no noise of the machine changes it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def lines_run_by(work: Callable[[], object]) -> int:
    """Return how many lines run in this thread while ``work`` is called."""
    count = 0

    def trace(_frame: Any, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return count
