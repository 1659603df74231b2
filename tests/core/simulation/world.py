"""True time, and what happens in it."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .process import Process

Action = Callable[[], None]

MOST_EVENTS = 20_000
"""In one run; a schedule has some hundreds."""


class Violation(AssertionError):
    """A property does not hold. The message begins with the property's name."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name}: {what}")
        self.name = name


class World:
    """An agenda of events, in the order of true time. All randomness comes from ``random``."""

    def __init__(self, random: Random) -> None:
        self.now = 0.0
        self.random = random
        self.events = 0
        self.most_events = MOST_EVENTS
        self.trace: list[tuple[Any, ...]] = []
        self.after_event: Action = _nothing
        self._agenda: list[tuple[float, int, Process | None, Action]] = []
        self._scheduled = 0
        self._halted = False
        self._violation: Violation | None = None

    def after(self, delay: float, action: Action, process: Process | None = None) -> None:
        """Schedules an action; one of a process happens only while that process runs."""
        self._scheduled += 1
        heapq.heappush(self._agenda, (self.now + delay, self._scheduled, process, action))

    def note(self, *facts: Any) -> None:
        self.trace.append((self.now, *facts))

    def fail(self, name: str, what: str) -> None:
        """Ends the run after this event. It does not raise here, inside the code under test."""
        if self._violation is None:
            self._violation = Violation(name, what)

    def raise_violation(self) -> None:
        if self._violation is not None:
            raise self._violation

    def halt(self) -> None:
        self._halted = True

    def run(self, until: float) -> None:
        """Lets things happen until it is halted, or until nothing will before ``until``."""
        self._halted = False
        agenda, pop = self._agenda, heapq.heappop
        while agenda and agenda[0][0] <= until:
            self.now, _, process, action = pop(agenda)
            if process is not None and not process.running:
                process.defer(action)
                continue
            self.events += 1
            action()
            self.after_event()
            self.raise_violation()
            if self.events > self.most_events:
                raise Violation("P10 live", "something goes on and on, and gets nowhere")
            if self._halted:
                return
        self.now = until

    def fingerprint(self) -> str:
        return hashlib.blake2b(repr(self.trace).encode(), digest_size=16).hexdigest()


def _nothing() -> None:
    pass
