"""The runtime and the bell of a simulated process."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from weblock._core.ports import Message

from .world import Crashed, Task, suspended

if TYPE_CHECKING:
    from .clients import Application


class SimRuntime:
    """The port ``Runtime``, on virtual time."""

    def __init__(self, process: Application) -> None:
        self._process = process
        self._world = process.world
        self._owners = 0

    def now(self) -> float:
        return self._process.now()

    def jitter(self) -> float:
        return self._world.rng.random()

    def new_owner(self) -> str:
        self._owners += 1
        owner = f"{self._process.name}.{self._owners}"
        self._process.referee.made(owner, self.task.attempt)
        return owner

    def control(self) -> object:
        return self._world.current

    def is_part_of(self, flow: object) -> bool:
        return flow is self._world.current

    def bell(self) -> SimBell:
        return SimBell(self)

    async def sleep(self, seconds: float) -> None:
        task = self.task
        self._process.after(seconds, task.wake, task.turn, None)
        await suspended(task)

    @property
    def task(self) -> Task:
        """The task that runs now; none does when a schedule that failed is being thrown away."""
        if self._world.current is None:
            raise Crashed
        return self._world.current

    @property
    def process(self) -> Application:
        return self._process


class SimBell:
    """The port ``Bell``: a queue with at most one listener."""

    def __init__(self, runtime: SimRuntime) -> None:
        self._runtime = runtime
        self._messages: deque[Message] = deque()
        self._listener: tuple[Task, int] | None = None

    def ring(self, message: Message) -> None:
        self._messages.append(message)
        if self._listener:
            task, turn = self._listener
            self._listener = None
            world = self._runtime.process.world
            world.at(world.now, task.wake, turn, None)

    async def heard(self, timeout: float | None) -> Message | None:
        process = self._runtime.process
        until = None if timeout is None else process.now() + timeout
        while not self._messages:
            left = None if until is None else until - process.now()
            if left is not None and left <= 0:
                self._runtime.process.world.spin()
                return None
            task = self._runtime.task
            self._listener = task, task.turn
            if left is not None:
                process.after(left, task.wake, task.turn, None)
            try:
                await suspended(task)
            finally:
                self._listener = None
        return self._messages.popleft()
