"""Forks: what a child lets go of, and what no fork may interrupt.

Windows does not fork, so there is nothing to do there.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from contextlib import ExitStack
from typing import Final, Protocol


class Forking(Protocol):
    """An object that belongs to its process: connections, threads, leases, a mutex."""

    def after_fork(self) -> None:
        """Called in the child, where no other thread runs. Ends nothing of the parent's."""


class Mutex(Protocol):
    """A lock of ``threading``."""

    def acquire(self) -> object: ...

    def release(self) -> object: ...


# By identity, since some that heed forks compare by value and cannot be hashed.
_heeding: Final[weakref.WeakValueDictionary[int, Forking]] = weakref.WeakValueDictionary()


def heed_forks(forking: Forking) -> None:
    """Call ``forking.after_fork()`` in each child of this process, for as long as it is in use.

    Objects are called in the order in which they were first passed here.
    """
    _heeding[id(forking)] = forking


def forbid_forks_within(mutex: Mutex) -> None:
    """Make each fork wait for ``mutex``, and hold it until the child exists."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=mutex.acquire, after_in_parent=mutex.release, after_in_child=mutex.release
        )


class _Collector(threading.local):
    """The collector of garbage, which rests in a child until all has been let go of there.

    It may end a generator that has locks open. Before that, it would close what is the parent's.
    """

    _rests = False

    def pause(self) -> None:
        self._rests = gc.isenabled()
        gc.disable()

    def go_on(self) -> None:
        if self._rests:
            gc.enable()


_collector: Final = _Collector()


def _after_fork() -> None:
    # One that fails does not keep the others from their turn.
    with ExitStack() as calls:
        calls.callback(_collector.go_on)
        for forking in reversed(list(_heeding.values())):
            calls.callback(forking.after_fork)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_collector.pause,
        after_in_parent=_collector.go_on,
        after_in_child=_after_fork,
    )
