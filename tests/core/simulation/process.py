"""A client process: a clock of its own, tasks, and signals that stop, continue and kill it."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

from .world import Action, World

SWITCH = 0.0003
"""Seconds, at most, until a task that may go on does."""


class Cancelled(BaseException):
    """What a cancelled task gets where it waits."""


class Signal:
    """Something to wait for, once."""

    __slots__ = ("_task", "fired")

    def __init__(self) -> None:
        self.fired = False
        self._task: Task | None = None

    def fire(self) -> None:
        if not self.fired:
            self.fired = True
            if self._task is not None:
                self._task.wake()

    def awaited_by(self, task: Task | None) -> None:
        self._task = task

    def __await__(self) -> Generator[Signal, None, None]:
        if not self.fired:
            yield self


class Task:
    """A coroutine under way: it goes on when its signal fires, or when it is cancelled.

    As in asyncio, a cancellation that comes between the signal and the next step wins.
    """

    def __init__(
        self,
        process: Process,
        coroutine: Coroutine[Any, Any, None],
        name: str,
        then: Action = lambda: None,
    ) -> None:
        self.process = process
        self._then = then
        self.name = name
        self.done = False
        self._coroutine = coroutine
        self._signal: Signal | None = None
        self._cancelled = False
        self._awake = False
        self.wake()

    def wake(self) -> None:
        if not self._awake and not self.done:
            self._awake = True
            self.process.soon(self._step)

    def cancel(self) -> None:
        if not self.done:
            self._cancelled = True
            self.wake()

    def close(self) -> None:
        """Ends it without another step, as the end of its process does."""
        self.done = True
        self._coroutine.close()

    def _step(self) -> None:
        self._awake = False
        if self.done:
            return
        if self._signal is not None:
            self._signal.awaited_by(None)
            self._signal = None
        self.process.current = self
        try:
            if self._cancelled:
                self._cancelled = False
                signal = self._coroutine.throw(Cancelled())
            else:
                signal = self._coroutine.send(None)
        except Cancelled:
            self.done = True
        except StopIteration:
            self.done = True
            self._then()
        else:
            self._signal = signal
            signal.awaited_by(self)
        finally:
            self.process.current = None


class Process:
    """Nothing of it happens while it is stopped, and nothing any more once it was killed."""

    def __init__(self, world: World, name: str, *, rate: float, offset: float) -> None:
        self.world = world
        self.name = name
        self.rate = rate
        self.offset = offset
        self.running = True
        self.dead = False
        self.woke_at = 0.0
        self.current: Task | None = None
        self.tasks: list[Task] = []
        self._deferred: list[Action] = []

    def now(self) -> float:
        """The local time."""
        return self.offset + self.rate * self.world.now

    def true_time(self, local: float) -> float:
        return (local - self.offset) / self.rate

    def after(self, seconds: float, action: Action) -> None:
        """Schedules an action of this process by its own clock."""
        self.world.after(max(0.0, seconds) / self.rate + 1e-9, action, self)

    def soon(self, action: Action) -> None:
        self.world.after(SWITCH * self.world.random.random(), action, self)

    def spawn(
        self, coroutine: Coroutine[Any, Any, None], name: str, then: Action = lambda: None
    ) -> Task:
        """Starts a task; ``then`` is called when it has come to its end by itself."""
        task = Task(self, coroutine, name, then)
        self.tasks.append(task)
        return task

    def defer(self, action: Action) -> None:
        if not self.dead:
            self._deferred.append(action)

    def stop(self) -> None:
        self.running = False

    def resume(self) -> None:
        """Goes on; what fell due meanwhile happens now, in any order."""
        if self.dead or self.running:
            return
        self.running = True
        self.woke_at = self.world.now
        deferred, self._deferred = self._deferred, []
        for action in deferred:
            self.soon(action)

    def kill(self) -> None:
        self.running = False
        self.dead = True
        self._deferred = []

    def close(self) -> None:
        """Throws away its tasks; only for a process of which nothing is looked at any more."""
        self.kill()
        while self.tasks:  # Closing one may start another, which then never gets to run.
            self.tasks.pop().close()
