"""What the garbage collector ends, at a time that a test chooses."""

from __future__ import annotations

import gc
from collections.abc import Callable


def collect(end: Callable[[], object]) -> None:
    """Has the collector call ``end``, as it does what an application has in a finalizer."""
    _Garbage(end)
    gc.collect(0)


class _Garbage:
    """An object that only the collector can end, for it has a reference to itself."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._itself = self
        self._end = end

    def __del__(self) -> None:
        self._end()
