"""What the garbage collector ends goes on in another thread.

The collector may run at any allocation, and so in a thread that has a mutex, or is asking an engine.
There it calls finalizers: it ends a generator that holds a lease or has locks open, and calls what an
application does in ``__del__``. To release a lease or to close locks takes mutexes and asks an engine,
for which that thread might wait for itself. So both begin like this:

    if collector.thread is not None and collector.runs_here():
        return end_later(self._do_it)

Python calls ``collector`` when the collector begins and ends. Whatever loses its last reference elsewhere
ends at once, in the line that drops it.
"""

from __future__ import annotations

import _thread
import gc
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal


class _Collector:
    """Where the collector runs. It does so in one thread at a time."""

    thread: int | None = None
    """The thread, or the greenlet."""

    def __call__(self, phase: Literal["start", "stop"], _info: dict[str, Any]) -> None:
        self.thread = threading.get_ident() if phase == "start" else None

    def runs_here(self) -> bool:
        # While the interpreter ends, no other thread runs any more.
        return self.thread == threading.get_ident() and not sys.is_finalizing()


collector: Final = _Collector()
gc.callbacks.append(collector)


def end_later(work: Callable[[], object]) -> None:
    """Do ``work`` in a thread, without waiting for anything: neither for the work nor for the thread.

    The start of a thread needs a mutex of ``threading``, so it is started by another one.
    """
    thread = threading.Thread(target=work, name="weblock-collected", daemon=True)
    with suppress(RuntimeError):  # The machine has no more threads. Leases then end at their ttl.
        _thread.start_new_thread(thread.start, ())
