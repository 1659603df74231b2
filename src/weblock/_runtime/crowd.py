"""Coroutines of the blocking world that take turns in one thread, while they wait for sockets."""

from __future__ import annotations

import select
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from .._core.ports import Readable
from .clock import now

T = TypeVar("T")


class _Parked(NamedTuple):
    """One that waits for a socket, and until when."""

    number: int
    work: Coroutine[Any, Any, Any]
    due: float


class Crowd(Generic[T]):
    """Several works, begun in their order; each goes on when its socket has something for it."""

    def __init__(self, works: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> None:
        self.outcomes: list[T | None] = [None] * len(works)
        self._parked: dict[int, _Parked] = {}
        for index, work in enumerate(works):
            self._step(index, work(), value=None)

    @property
    def over(self) -> bool:
        """Whether all have come to their end."""
        return not self._parked

    def run(
        self, enough: Callable[[Sequence[T | None]], bool], *, until: float = float("inf")
    ) -> None:
        """Has them go on until all are done, what has come is ``enough``, or the time is over."""
        while self._parked and now() < until and not enough(self.outcomes):
            due = min(until, *(parked.due for parked in self._parked.values()))
            self._wait(None if due == float("inf") else max(0.0, due - now()))

    def _wait(self, timeout: float | None) -> None:
        poll = select.poll()
        for fd in self._parked:
            poll.register(fd, select.POLLIN)
        for fd, _event in poll.poll(None if timeout is None else 1000 * timeout):
            parked = self._parked.pop(fd)
            self._step(parked.number, parked.work, value=True)
        late = [fd for fd, parked in self._parked.items() if parked.due <= now()]
        for fd in late:
            parked = self._parked.pop(fd)
            self._step(parked.number, parked.work, value=False)

    def _step(self, index: int, work: Coroutine[Any, Any, T], *, value: bool | None) -> None:
        try:
            wanted = work.send(value)
        except StopIteration as stop:
            self.outcomes[index] = stop.value
        else:
            assert isinstance(wanted, Readable)
            due = float("inf") if wanted.timeout is None else now() + wanted.timeout
            self._parked[wanted.fd] = _Parked(index, work, due)
