"""Virtual time: a heap of things to do, processes with clocks of their own, and their tasks."""

from __future__ import annotations

import hashlib
import heapq
import random
import types
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

BUSIEST: Final = 30_000
"""Events of a schedule, at most: more are a loop."""


class Cancelled(BaseException):
    """What a task's runner throws into it, at any suspension."""


class Crashed(BaseException):
    """What code of a process that is no more gets to see when it wants to wait."""


class Violation(BaseException):
    """A property does not hold. It begins with its name, and nothing on its way catches it."""


class Clock:
    """A clock of its own rate and offset."""

    def __init__(self, rate: float, offset: float) -> None:
        self.rate = rate
        self.offset = offset

    def at(self, true: float) -> float:
        return self.offset + true * self.rate

    def true(self, local: float) -> float:
        return (local - self.offset) / self.rate


class World:
    """True time, and all that is to happen in it, in one order."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 0.0
        self.current: Task | None = None
        self.last_fault = 0.0
        self.counts: Counter[str] = Counter()
        self.trace: list[tuple[Any, ...]] = []
        self.tasks: list[Task] = []
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = 0
        self._spins = 0

    def at(self, time: float, what: Callable[..., object], *args: Any) -> None:
        self._order += 1
        heapq.heappush(self._heap, (max(time, self.now), self._order, what, args))

    def note(self, *what: Any) -> None:
        self.trace.append((self.now, *what))

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def disturb(self, until: float) -> None:
        """Says that a fault acts until then: bounds on time count from its end."""
        self.last_fault = max(self.last_fault, until)

    def run(self, after_each: Callable[[], None], limit: float) -> None:
        """Does all there is to do, and looks after each event that something came of."""
        heap = self._heap
        while heap:
            self.now, _, what, args = heapq.heappop(heap)
            self._spins = 0
            if self.now > limit:
                raise Violation(f"P10 live: not all is done after {limit:g} s")
            if self._order > BUSIEST:
                raise Violation(f"P10 live: {BUSIEST} events, and no end")
            if what(*args) is not False:
                self.events += 1
                after_each()

    def spin(self) -> None:
        """Notes that a task went on without waiting, which it must not do without end."""
        self._spins += 1
        if self._spins > 1000:
            raise Violation("P10 live: a task spins, and time stands still")

    def lines(self) -> list[str]:
        """The trace, to be read."""
        return [f"{time:10.6f}  " + " ".join(map(str, what)) for time, *what in self.trace]

    def fingerprint(self) -> str:
        """The same for the same seed, whatever the machine."""
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()

    def end(self) -> None:
        """Closes what still waits, which is not part of the run any more."""
        for task in self.tasks:
            task.close()


class Process:
    """A process: a clock, and whether it runs now."""

    def __init__(self, world: World, name: str, clock: Clock) -> None:
        self.world = world
        self.name = name
        self.clock = clock
        self.paused_until = 0.0
        self.stalled_until = 0.0
        self.last_pause = -1.0
        self.crashed = False

    def now(self) -> float:
        return self.clock.at(self.world.now)

    def after(self, seconds: float, what: Callable[..., object], *args: Any) -> None:
        """Does something after so many seconds on the process's own clock."""
        # A hair later, since a timer that rounding makes come too early would be set again at once.
        self.world.at(self.world.now + max(0.0, seconds) / self.clock.rate + 1e-9, what, *args)

    def pause(self, seconds: float) -> None:
        self.paused_until = max(self.paused_until, self.world.now + seconds)
        self.last_pause = max(self.last_pause, self.paused_until)

    def stall(self, seconds: float) -> None:
        """Pauses the clients, and not what runs in the background."""
        self.stalled_until = self.world.now + seconds
        self.last_pause = max(self.last_pause, self.stalled_until)

    @property
    def runs(self) -> bool:
        return not self.crashed and self.world.now >= self.paused_until


class Task:
    """A coroutine of a process, stepped whenever what it waits for is there."""

    def __init__(
        self, process: Process, name: str, work: Coroutine[Any, Any, None], *, client: bool
    ) -> None:
        self.process = process
        self.name = name
        self.client = client
        self.attempt: Any = None
        self.turn = 0
        self.done = False
        self.after_step: Callable[[Task], None] | None = None
        self._work = work
        process.world.tasks.append(self)
        process.world.at(process.world.now, self.step, 0, None)

    def wake(self, turn: int, value: object) -> bool:
        """Has the task go on with ``value``, unless it does not wait for this any more."""
        if turn != self.turn or self.done:
            return False
        self.turn += 1  # What comes second, comes too late.
        return self.step(self.turn, value)

    def cancel(self) -> bool:
        """Throws ``Cancelled`` at where it waits."""
        if self.done or self.process.crashed:
            return False
        self.turn += 1
        self.process.world.note(self.name, "is cancelled")
        return self.step(self.turn, Cancelled())

    def step(self, turn: int, value: object) -> bool:
        """Goes on from a suspension; one that was overtaken by a cancellation does not."""
        world, process = self.process.world, self.process
        if turn != self.turn or self.done or process.crashed:
            return False
        runs_at = max(process.paused_until, process.stalled_until if self.client else 0.0)
        if world.now < runs_at:
            world.at(runs_at, self.step, turn, value)
            return False
        world.current = self
        try:
            if isinstance(value, BaseException):
                self._work.throw(value)
            else:
                self._work.send(value)
        except StopIteration:
            self.done = True
        except Cancelled:
            self.done = True
        finally:
            world.current = None
        if self.after_step and not self.done:
            self.after_step(self)
        return True

    def close(self) -> None:
        """Ends it without a trace: whatever it still wants to wait for raises ``Crashed``."""
        if self.done:
            return
        self.done = self.process.crashed = True
        self.process.world.current = self
        try:
            self._work.close()
        except Crashed:
            pass
        finally:
            self.process.world.current = None


@types.coroutine
def _suspended() -> Generator[None, Any, Any]:
    return (yield)


async def suspended(task: Task) -> Any:
    """Waits until somebody wakes the task for its present turn."""
    if task.process.crashed:
        raise Crashed
    return await _suspended()
