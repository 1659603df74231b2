"""Forks: how a child finds out that it is one, and what it then replaces.

A child process inherits copies of everything: connections whose replies belong to its parent, leases
that its parent holds, threads that do not run here, and mutexes that another thread of the parent may
have held. None of them is of any use to the child. So the child drops all of it:

- What has an open file or socket calls ``close_in_children``. The child closes its copy of the descriptor
  behind the back of the driver or event loop that has opened it, which could disturb the parent.
- What has a state that belongs to the process calls ``reset_after_fork``. Its ``after_fork`` makes a new state,
  as ``__init__`` does. An engine is one such object, so the connections, threads and memories below it
  need not know of forks. Its keeper and its stores are made anew, too (``_engines``).
- A mutex that is no part of such a state is a ``Mutex``.

The former states are never used again, and never finalized: their finalizers would act for the parent.

There are two ways to notice a fork, and both do the same:

1. Python calls the hooks of ``os.register_at_fork`` in the child. This also serves children that
   never lock anything: they must not keep the sockets of their parent open.
2. A program that forks in C need not call these hooks; uWSGI does not, by default. So each method that
   a caller enters compares the process id: ``if getpid() != process.pid: enter_child()``.

Windows does not fork, so there is nothing to do there.
"""

from __future__ import annotations

import atexit
import gc
import os
import random
import threading
import weakref
from contextlib import ExitStack, suppress
from os import getpid
from typing import Final, Protocol

__all__ = ["Mutex", "close_in_children", "enter_child", "getpid", "process", "reset_after_fork"]


class Forking(Protocol):
    """An object that belongs to its process: connections, threads, leases, a mutex."""

    def after_fork(self) -> None:
        """Called in the child before it uses the object. Must end nothing of the parent's.

        It must not acquire a mutex that the child has inherited, and must bear being called again.
        """


class Open(Protocol):
    """A socket, or an object that has opened one, or a file."""

    def fileno(self) -> int:
        """Return the number of its descriptor, which is negative if that is closed. Acquires no mutex."""


class Process:
    """The process that all objects here belong to.

    Its id differs from ``getpid()`` in a child that has not replaced the objects of its parent.
    """

    __slots__ = ("pid",)  # Each section reads it: a ``SimpleNamespace`` takes longer.

    def __init__(self) -> None:
        self.pid = getpid()


process: Final = Process()

# By identity, since some that heed forks compare by value and cannot be hashed.
_resetting: Final[weakref.WeakValueDictionary[int, Forking]] = weakref.WeakValueDictionary()

_open: Final[weakref.WeakValueDictionary[int, Open]] = weakref.WeakValueDictionary()

_inherited: Final[list[object]] = []
"""The former states of a child's objects, which no finalizer must reach."""

_entering: Final[dict[int, threading.RLock]] = {}
"""By process id, because the mutex of another process may stay locked in its children."""


def reset_after_fork(forking: Forking) -> None:
    """Call ``forking.after_fork()`` in each child of this process, for as long as it is in use.

    Objects are called in the order in which they were first passed here.
    """
    _resetting[id(forking)] = forking


def close_in_children(opened: Open) -> None:
    """Close the descriptor of an object in each child of this process, for as long as it is in use."""
    _open[id(opened)] = opened


def enter_child() -> None:
    """Replace what this process has inherited from its parent, unless that has been done.

    Other threads of the child wait for the end of it.
    """
    pid = getpid()
    with _entering.setdefault(pid, threading.RLock()):
        if pid != process.pid:
            random.seed()  # Else all children would wait for the same random times.
            _replace_inherited()


def _replace_inherited() -> None:
    # The collector of garbage may end a generator that has locks open. Before everything is replaced,
    # it would close what is the parent's.
    collects = gc.isenabled()
    gc.disable()
    with ExitStack() as calls:  # One that fails does not keep the others from their turn.
        if collects:
            calls.callback(gc.enable)
        calls.callback(setattr, process, "pid", getpid())
        resetting, opened = list(_resetting.values()), list(_open.values())
        for forking in reversed(resetting):
            calls.callback(forking.after_fork)
        for each in opened:
            calls.callback(_close_copy, each)
        _open.clear()
        _inherited.append((opened, [vars(forking).copy() for forking in resetting]))


def _close_copy(opened: Open) -> None:
    """Close the descriptor of an object, whose driver must not reach another file by its number.

    ``dup2`` closes the copy and leaves the number taken, by the null device, until the driver closes it.
    """
    descriptor = opened.fileno()
    if descriptor < 0:
        return
    try:
        null = os.open(os.devnull, os.O_RDWR)
    except OSError:  # No descriptor is left, or there is no such device.
        with suppress(OSError):
            os.close(descriptor)
        return
    with suppress(OSError):
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)


class Mutex:
    """``with mutex.lock:`` keeps other threads out. A child gets a new one.

    One that ``delays_forks`` is held only where no announced fork must come in between.
    """

    def __init__(self, *, delays_forks: bool = False) -> None:
        self.after_fork()
        reset_after_fork(self)
        if delays_forks and hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._enter, after_in_parent=self._leave)

    def after_fork(self) -> None:
        self.lock = threading.RLock()

    def _enter(self) -> None:
        self.lock.acquire()

    def _leave(self) -> None:
        self.lock.release()


class _Collector(threading.local):
    """The collector of garbage, which rests from a fork until the child has replaced everything."""

    _rests = False

    def pause(self) -> None:
        self._rests = gc.isenabled()
        gc.disable()

    def go_on(self) -> None:
        rests, self._rests = self._rests, False
        if rests:
            gc.enable()


_collector: Final = _Collector()


def _after_announced_fork() -> None:
    try:
        _replace_inherited()
    finally:
        _collector.go_on()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_collector.pause,
        after_in_parent=_collector.go_on,
        after_in_child=_after_announced_fork,
    )


@atexit.register
def _leave_to_parent() -> None:
    """Make the end of a child, in which drivers close their connections, leave those of its parent."""
    if getpid() != process.pid:
        enter_child()
