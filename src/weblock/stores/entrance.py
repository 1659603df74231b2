"""A mutex that a thread does not wait for while it has it itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from ..errors import EngineUnavailable

T = TypeVar("T")


class Entrance:
    """``entrance.opened(engine, open_it)`` opens an engine in one thread at a time.

    The collector of garbage may run at nearly any point, and end a generator that holds a lease. Its
    release then asks the engine in a thread that may be inside already, and would wait for itself. It is
    refused, and the keeper releases the lease later. Where the thread has the mutex, and is not inside yet
    or no longer, the release enters and leaves before the thread goes on.
    """

    __slots__ = ("_inside", "mutex")

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self._inside = False
        """Whether the thread that has the mutex is opening the engine."""

    def opened(self, engine: str, open_it: Callable[[], T]) -> T:
        """Return what ``open_it`` does. Raises ``EngineUnavailable`` in the thread that is inside of it."""
        with self.mutex:
            if self._inside:
                raise EngineUnavailable(engine, "its own thread is opening it")
            try:
                self._inside = True
                return open_it()
            finally:
                self._inside = False
