"""When who was inside a critical section, noted while a test runs."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

STEP: Final = 0.002
"""Seconds between two checks whether another call has entered."""


@dataclass(eq=False)
class Section:
    """One pass through the critical section, by the monotonic clock."""

    thread: threading.Thread
    blocking: bool
    """Whether its thread could do nothing else meanwhile."""
    enter: float
    leave: float | None = None

    def covers(self, moment: float) -> bool:
        """Return whether it was entered by then, and not left."""
        return self.enter <= moment and (self.leave is None or moment < self.leave)

    def meets(self, other: Section) -> bool:
        """Return whether the other one was inside when this one was entered; it meets itself."""
        return other is self or other.covers(self.enter)


class Sections:
    """All passes through a critical section, from any thread or task.

    Each is extended until more calls than ``limit`` are inside or ``pause`` seconds have passed:
    sections of a millisecond would overlap too seldom for a test to notice.
    """

    def __init__(self, *, pause: float, limit: int = 1) -> None:
        self._pause = pause
        self._limit = limit
        self._guard = threading.Lock()
        self._all: list[Section] = []
        self._too_many = False

    def all(self) -> list[Section]:
        """The sections so far, in the order in which they were entered."""
        with self._guard:
            return list(self._all)

    @contextmanager
    def inside(self, *, blocking: bool = True) -> Iterator[None]:
        """Record that the block is entered and left."""
        with self._guard:
            others = sum(each.leave is None for each in self._all)
            self._too_many = self._too_many or others >= self._limit
            section = Section(threading.current_thread(), blocking, time.monotonic())
            self._all.append(section)
        try:
            yield
        finally:
            with self._guard:
                section.leave = time.monotonic()

    def lingering(self, function: Callable[..., Any], *, asynchronous: bool) -> Callable[..., Any]:
        """Return the function, after which its caller lingers while another call may enter."""
        if asynchronous:

            @functools.wraps(function)
            async def lingering_async(*args: Any, **kwargs: Any) -> Any:
                try:
                    return await function(*args, **kwargs)
                finally:
                    for _ in self._while_worth_it():
                        await asyncio.sleep(STEP)

            return lingering_async

        @functools.wraps(function)
        def lingering(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            finally:
                for _ in self._while_worth_it():
                    time.sleep(STEP)

        return lingering

    def noted(self, function: Callable[..., Any], *, asynchronous: bool) -> Callable[..., Any]:
        """The function, each call of which is a section."""
        if asynchronous:

            @functools.wraps(function)
            async def noted_async(*args: Any, **kwargs: Any) -> Any:
                with self.inside(blocking=False):
                    return await function(*args, **kwargs)

            return noted_async

        @functools.wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            with self.inside():
                return function(*args, **kwargs)

        return noted

    def _while_worth_it(self) -> Iterator[None]:
        give_up_at = time.monotonic() + self._pause
        while not self._too_many and time.monotonic() < give_up_at:
            yield


def most_at_once(sections: list[Section]) -> int:
    """Return how many sections overlapped at the same moment, at most."""
    return max((sum(map(at.meets, sections)) for at in sections), default=0)


def overlapping(sections: list[Section]) -> list[tuple[int, int]]:
    """The pairs that overlapped, by their places in the list, from 1; entered in that order."""
    pairs = itertools.combinations(enumerate(sections, 1), 2)
    return [(first, then) for (first, a), (then, b) in pairs if a.covers(b.enter)]


Watch = Callable[[Sections], AbstractContextManager[object]]
"""Records what must not overlap as sections, while the block lasts."""


def watch_function(path: str) -> Watch:
    """Watch the function or method with this dotted path, where its callers look it up."""

    def watch(sections: Sections) -> AbstractContextManager[object]:
        owner, name = _owner_of(path)
        function = getattr(owner, name)
        asynchronous = inspect.iscoroutinefunction(function)
        watched = sections.lingering(function, asynchronous=asynchronous)
        watched = sections.noted(watched, asynchronous=asynchronous)
        if isinstance(inspect.getattr_static(owner, name), staticmethod | classmethod):
            watched = staticmethod(watched)
        return mock.patch.object(owner, name, watched)

    return watch


def _owner_of(path: str) -> tuple[Any, str]:
    """The module or class that has the function, and its name there. Raises ``LookupError``."""
    *parents, name = path.split(".")
    for length in range(len(parents), 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parents[:length]))
        except ModuleNotFoundError:
            continue
        for parent in parents[length:]:
            owner = getattr(owner, parent, None)
        if callable(getattr(owner, name, None)):
            return owner, name
    raise LookupError(f"inside={path!r} names no function, as 'shop.orders.create_item' would")
