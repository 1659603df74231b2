"""Let at most so many callers do something at once, and lose none of their permits.

``turns`` returns a queue with one permit for each caller that may be inside. A caller takes a
permit into a list of its own, inside the ``try`` whose ``finally`` gives it back:

    permits: list[None] = []
    try:
        permits += map(free.get, (True,), (seconds,))  # Raises Empty.
        ...
    finally:
        if permits:
            free.put(None)

A signal handler can raise an exception after any call, and at the start of any function that is
written in Python. Both steps are therefore single calls that run in C: the permit is in the list as
soon as it has left the queue, and nothing runs between the end of the ``try`` block and ``put``.
The semaphores of ``threading`` are written in Python, and such an exception can take one of their
permits for good. No permit depends on the garbage collector, because an exception that is kept also
keeps all variables of the functions that it left.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from queue import Empty
from typing import TypeVar

__all__ = ["Empty", "taken_out", "turns"]

T = TypeVar("T")


def turns(count: int) -> queue.SimpleQueue[None]:
    """Return a queue with ``count`` permits."""
    free: queue.SimpleQueue[None] = queue.SimpleQueue()
    for _ in range(count):
        free.put(None)
    return free


def taken_out(items: list[T]) -> Iterator[T]:
    """Take everything out of a list, one after the other, while other threads do so, too."""
    while items:
        try:
            yield items.pop()
        except IndexError:  # Another thread has the last one.
            return
