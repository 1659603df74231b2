"""A mutex that a thread does not wait for while it has it itself."""

from __future__ import annotations

import threading

from ..errors import EngineUnavailable


class Entrance:
    """``with entrance.mutex:``, there ``refuse_oneself(engine)``, and ``inside`` around what opens the engine.

    The collector of garbage may run at nearly any point, and end a generator that holds a lease. Its
    release then asks the engine in a thread that may be inside already, and would wait for itself. It is
    refused, and the keeper releases the lease later. Where the thread has the mutex, and is not inside yet
    or no longer, the release enters and leaves before the thread goes on.
    """

    __slots__ = ("inside", "mutex")

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.inside = False
        """Whether the thread that has the mutex is opening the engine."""

    def refuse_oneself(self, engine: str) -> None:
        """Raise ``EngineUnavailable`` in the thread that is inside."""
        if self.inside:
            raise EngineUnavailable(engine, "its own thread is opening it")
