"""Turns at what only so many may use at once, which come back whatever becomes of who had one."""

from __future__ import annotations

import queue
import weakref
from collections.abc import Callable, Iterator
from queue import Empty
from typing import TypeVar

from .greenlets import original

__all__ = ["Empty", "Turn", "Turns", "taken_out"]

T = TypeVar("T")


def taken_out(items: list[T]) -> Iterator[T]:
    """Take everything out of a list, one after the other, while other threads do so, too."""
    while items:
        try:
            yield items.pop()
        except IndexError:  # Another thread has the last one.
            return


class Turn:
    """The right to be inside. One that nobody has any more goes back by itself.

    A signal handler may raise between the call that took a turn and the line that would remember
    it. The semaphores of ``threading`` stay taken then, for good. That is all that this is for: a
    traceback keeps a turn that is in one of its frames, until the next collection if there is a
    cycle, as with errors that refer to one another. So a caller that fails gives its turn back.
    """

    __slots__ = ("_turns",)

    def __init__(self, turns: weakref.ref[Turns]) -> None:
        self._turns = turns

    def __del__(self) -> None:
        if turns := self._turns():
            turns.lost()


class Turns:
    """``take(timeout=seconds)`` returns a turn or raises ``Empty``; ``give_back(turn)`` returns it.

    ``on_lost`` is called for a turn that was lost, before another caller can have it. ``brief``
    turns are given back without having waited for anything: no greenlet needs to run in between.
    """

    __slots__ = ("__weakref__", "_on_lost", "_self", "give_back", "take")

    def __init__(
        self, count: int, on_lost: Callable[[], None] = lambda: None, *, brief: bool = False
    ) -> None:
        kind = original("queue", "SimpleQueue") if brief else queue.SimpleQueue
        free: queue.SimpleQueue[Turn] = kind()
        self._on_lost = on_lost
        # Both are made in C, where no signal handler comes between what they do.
        self.take = free.get
        self.give_back: Callable[[Turn], None] = free.put
        # Weak, so that turns that go out of use take theirs along; and kept here, because the
        # collector clears a weak reference that is garbage itself, as where all turns are lost.
        self._self = weakref.ref(self)
        for _ in range(count):
            free.put(Turn(self._self))

    def lost(self) -> None:
        """Replace a turn that was lost."""
        try:
            self._on_lost()
        finally:
            self.give_back(Turn(self._self))
