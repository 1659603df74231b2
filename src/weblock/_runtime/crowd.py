"""Coroutines of the blocking world that take turns in one thread, while they wait for sockets."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from .._core.ports import Readable
from .._platform.polling import READABLE, new_poll
from .clock import now


class _Parked(NamedTuple):
    """A coroutine that waits for a socket, and until when."""

    work: Coroutine[Any, Any, None]
    due: float


class Crowd:
    """Several coroutines, started in order; each continues when its socket is ready."""

    def __init__(self, works: Sequence[Coroutine[Any, Any, None]]) -> None:
        self._works = works
        self._begun = False
        self._parked: dict[int, _Parked] = {}
        self._poll = new_poll()

    @property
    def over(self) -> bool:
        """Whether all have ended."""
        return self._begun and not self._parked

    def run(self, enough: Callable[[], bool], *, until: float = float("inf")) -> None:
        """Run them until all are done, there is ``enough``, or the time is over.

        After an exception, which a signal handler may have raised, none of them continues. They are
        closed, so that they give back what they have: a traceback that is kept would keep it, too.
        """
        try:
            if not self._begun:
                self._begun = True
                for work in self._works:
                    self._step(work, value=None)
            while self._parked and now() < until and not enough():
                self._wait(min(until, *(parked.due for parked in self._parked.values())))
        except BaseException:
            self._parked = {}
            for work in self._works:
                work.close()
            raise

    def _wait(self, until: float) -> None:
        looked = now()
        timeout = None if until == float("inf") else 1000 * max(0.0, until - looked)
        for fd, _event in self._poll.poll(timeout):
            self._go_on(fd, value=True)
        # What came while we were busy with others is for the next look.
        for fd in [fd for fd, parked in self._parked.items() if parked.due <= looked]:
            self._go_on(fd, value=False)

    def _go_on(self, fd: int, *, value: bool) -> None:
        self._poll.unregister(fd)
        self._step(self._parked.pop(fd).work, value=value)

    def _step(self, work: Coroutine[Any, Any, None], *, value: bool | None) -> None:
        try:
            wanted = work.send(value)
        except StopIteration:
            return
        if not isinstance(wanted, Readable):
            work.close()
            raise TypeError(
                "a coroutine waited for something other than a socket in the blocking runtime"
            )
        due = float("inf") if wanted.timeout is None else now() + wanted.timeout
        self._parked[wanted.fd] = _Parked(work, due)
        self._poll.register(wanted.fd, READABLE)
