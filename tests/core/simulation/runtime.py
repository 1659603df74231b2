"""The simulated runtime: the ports through which the core waits and tells the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from weblock._core.ports import Mailbox, Message

from .process import Process, Signal


class SimulatedRuntime:
    """Time passes on the process's clock, and waiting is for the scheduler."""

    suspends = True

    def __init__(self, process: Process, on_new_owner: Callable[[str], None]) -> None:
        self._process = process
        self._on_new_owner = on_new_owner
        self._owners = 0
        self.now = process.now
        self.jitter = process.world.random.random

    def new_owner(self) -> str:
        self._owners += 1
        owner = f"{self._process.name}#{self._owners}"
        self._on_new_owner(owner)
        return owner

    def control(self) -> object:
        return self._process.current

    def is_part_of(self, flow: object) -> bool:
        return flow is self._process.current

    def holds_up(self, _flow: object) -> bool:
        return False

    def mailbox(self) -> Mailbox:
        return SimulatedMailbox(self._process)

    async def at_once(
        self, works: Sequence[Coroutine[Any, Any, None]], enough: Callable[[], bool]
    ) -> None:
        under_way = len(works)
        over = Signal()

        def done() -> None:
            nonlocal under_way
            under_way -= 1
            if under_way == 0 or enough():
                over.fire()

        for index, work in enumerate(works):
            self._process.spawn(work, f"work {index}", done)
        if works:
            await over

    async def sleep(self, seconds: float) -> None:
        signal = Signal()
        self._process.after(seconds, signal.fire)
        await signal


class SimulatedMailbox:
    """A queue with one listener."""

    deaf = False

    def __init__(self, process: Process) -> None:
        self._process = process
        self._messages: deque[Message] = deque()
        self._listener = Signal()

    def put(self, message: Message) -> None:
        self._messages.append(message)
        self._listener.fire()

    async def heard(self, timeout: float | None) -> Message | None:
        until = None if timeout is None else self._process.now() + timeout
        waited = False  # Even a look takes time, so that one who looks all the time is seen to.
        while not self._messages:
            self._listener = signal = Signal()
            if until is not None:
                left = until - self._process.now()
                if waited and left <= 0:
                    return None
                self._process.after(left, signal.fire)
            await signal
            waited = True
        return self._messages.popleft()
