"""What the garbage collector ends goes on in another thread.

The collector may run at any allocation, and so in a thread that has a mutex, or is asking an engine.
There it calls finalizers: it ends a generator that holds a lease or has locks open, and calls what an
application does in ``__del__``. To release a lease or to close locks takes mutexes and asks an engine,
for which that thread might wait for itself. So both begin like this:

    if [*phases][-1] == "start" and runs_here():
        return end_later(self._do_it)

Whatever loses its last reference elsewhere ends at once, in the line that drops it.

Python calls what is in ``gc.callbacks`` when the collector begins and ends, and drops the exceptions that are
raised there. In a Python function, that could be the exception of a signal handler, such as
``KeyboardInterrupt``. So the callbacks are methods that are written in C, which no signal interrupts. Each
gets the phase, ``"start"`` or ``"stop"``, and a new dictionary.
"""

from __future__ import annotations

import _thread
import gc
import importlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from .greenlets import patched_by
from .threads import background_thread

phases: Final = OrderedDict.fromkeys(("start", "stop"))
"""The last one is the phase that came last: ``"start"`` while the collector runs in any thread.

Copy it to read it: the collector may run before any instruction, and an iterator would fail then.
"""

_begun: Final[dict[str, object]] = {}
# gevent's own ``local`` cannot be used in a greenlet that is being finalized. This one knows real threads only.
_here: Final = (
    importlib.import_module("gevent.monkey").get_original("threading", "local")()
    if patched_by() == "gevent"
    else threading.local()
)

_callbacks: list[Any] = gc.callbacks
_callbacks += (phases.move_to_end, _begun.__setitem__, _here.__setattr__)


def runs_here() -> bool:
    # While the interpreter ends, no other thread runs any more. A child of another thread has none that runs.
    return getattr(_here, "start", None) is _begun["start"] and not sys.is_finalizing()


def end_later(work: Callable[[], object]) -> None:
    """Do ``work`` in a thread, without waiting for anything: neither for the work nor for the thread.

    The start of a thread needs a mutex of ``threading``, so it is started by another one.
    """
    thread = background_thread(work, "weblock-collected")
    with suppress(RuntimeError):  # The machine has no more threads. Leases then end at their ttl.
        _thread.start_new_thread(thread.start, ())
