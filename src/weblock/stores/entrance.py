"""A mutex that a thread does not wait for while it has it itself."""

from __future__ import annotations

import threading

from ..errors import EngineUnavailable


class Entrance:
    """``refuse_oneself(engine)``, then ``with entrance.mutex:``, and there ``entrance.thread`` first.

    The collector of garbage may run at any allocation, and end a generator that holds a lease. Its
    release then asks the engine in a thread that may be inside already, and would wait for itself. It is
    refused, and the keeper releases the lease later.
    """

    __slots__ = ("mutex", "thread")

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.thread = 0
        """The thread that had the mutex last. It is set without a call, where the collector could run."""

    def refuse_oneself(self, engine: str) -> None:
        """Raise ``EngineUnavailable`` in the thread that is inside."""
        if self.thread == threading.get_ident() and self.mutex.locked():
            raise EngineUnavailable(engine, "its own thread is opening it")
