"""When who was inside a critical section, noted while a test runs."""

from __future__ import annotations

import asyncio
import functools
import inspect
import pkgutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
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
        return (self._lingers_async() if asynchronous else self._lingers())(function)

    def noted(self, function: Callable[..., Any], *, asynchronous: bool) -> Callable[..., Any]:
        """The function, each call of which is a section."""
        if asynchronous:

            @functools.wraps(function)
            async def noted_async(*args: Any, **kwargs: Any) -> Any:
                with self.inside(blocking=False):
                    return await function(*args, **kwargs)

            return noted_async

        return self.inside()(function)

    @contextmanager
    def _lingers(self) -> Iterator[None]:
        try:
            yield
        finally:
            for _ in self._while_worth_it():
                time.sleep(STEP)

    @asynccontextmanager
    async def _lingers_async(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            for _ in self._while_worth_it():
                await asyncio.sleep(STEP)

    def _while_worth_it(self) -> Iterator[None]:
        give_up_at = time.monotonic() + self._pause
        while not self._too_many and time.monotonic() < give_up_at:
            yield


def most_at_once(sections: list[Section]) -> int:
    """Return how many sections overlapped at the same moment, at most."""
    met = (sum(each is at or each.covers(at.enter) for each in sections) for at in sections)
    return max(met, default=0)


Watch = Callable[[Sections], AbstractContextManager[object]]
"""Records what must not overlap as sections, while the block lasts."""


def watch_function(path: str) -> Watch:
    """Watch the function or method with this dotted path, where its callers look it up."""

    def watch(sections: Sections) -> AbstractContextManager[object]:
        parent, _, name = path.rpartition(".")
        try:
            owner = pkgutil.resolve_name(parent)
            function = getattr(owner, name)
            if not callable(function):
                raise TypeError(f"{path} cannot be called")
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            raise LookupError(
                f"inside={path!r} names no function, as 'shop.orders.create_item' would: {error}"
            ) from error
        asynchronous = inspect.iscoroutinefunction(function)
        watched = sections.lingering(function, asynchronous=asynchronous)
        watched = sections.noted(watched, asynchronous=asynchronous)
        if isinstance(inspect.getattr_static(owner, name), staticmethod | classmethod):
            watched = staticmethod(watched)
        return mock.patch.object(owner, name, watched)

    return watch
