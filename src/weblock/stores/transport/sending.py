"""Send requests to several servers at once, and return when enough of them have answered."""

from __future__ import annotations

import asyncio
import select
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from ..._core.ports import sent
from ..._platform.forks import Open
from ..._platform.threads import background_thread
from .loops import ByLoop

T = TypeVar("T")

Request = Coroutine[Any, Any, None]

Send = Callable[[Sequence[Request], Callable[[], bool]], Awaitable[None]]
"""Runs requests, none of which raises, until all are over, or one is and there is ``enough``."""

_EAGER: Final[Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}
"""Starts a task at once, which is twice as fast as to have the loop start it."""


class _Tasks:
    """The requests of a loop that are not over: it has only weak references to their tasks."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.running: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Leave them to their end."""


_tasks: Final = ByLoop(_Tasks)


async def in_tasks(requests: Sequence[Request], enough: Callable[[], bool]) -> None:
    """Send all requests as tasks of asyncio. Those that are not waited for go on."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    left, tasks = len(requests), _tasks.here().running

    def ended(task: asyncio.Task[None]) -> None:
        nonlocal left
        tasks.discard(task)
        left -= 1
        if over.done():
            return  # Only the loop can still report an error: it logs it.
        if not task.cancelled() and (error := task.exception()):
            over.set_exception(error)
        elif left == 0 or enough():
            over.set_result(None)

    for request in requests:
        task = asyncio.Task(request, loop=loop, **_EAGER)
        tasks.add(task)
        task.add_done_callback(ended)
    if requests:
        await over


async def in_this_thread(requests: Sequence[Request], enough: Callable[[], bool]) -> None:
    """Send all requests, then collect the replies: see ``ports.sent``.

    When there are enough, the others get as long again, for most have been answered, too. The rest
    is closed: its connections drop the replies when they come. A request that first has to connect,
    say, is continued in a thread, so that no other waits for it.
    """
    poll = new_poll()
    waiting: dict[int, tuple[Request, float]] = {}
    to_close: list[Request] = list(requests)

    def go_on(request: Request) -> None:
        try:
            fd, until = request.send(None)
            if fd is None:
                request = _in_a_thread(request, until, to_close)
                to_close.append(request)
                fd, until = request.send(None)
        except StopIteration:
            return
        waiting[fd] = request, until
        poll.register(fd, READABLE)

    began, give_up_at = time.monotonic(), float("inf")
    try:
        for request in requests:
            go_on(request)
        while waiting and (now := time.monotonic()) < give_up_at:
            due = min(give_up_at, *[until for _, until in waiting.values()])
            ready = [fd for fd, _ in poll.poll(1000 * max(0.0, due - now))]
            for fd in ready or [fd for fd, (_, until) in waiting.items() if until <= now]:
                poll.unregister(fd)
                go_on(waiting.pop(fd)[0])
            if waiting and give_up_at == float("inf") and enough():
                give_up_at = 2 * time.monotonic() - began
    finally:
        try:
            for request in to_close:
                request.close()
        finally:  # A signal handler may have raised an exception in the loop.
            for request in to_close:
                request.close()


async def _in_a_thread(request: Request, until: float, to_close: list[Request]) -> None:
    """Continue a request that would block; the caller waits for its end until then.

    The thread says that it is done. To close its socket would not do: a child that is forked
    meanwhile has a copy of it, and the end of a connection comes when the last copy is closed.
    """
    unbegun = [request]
    """The thread, or its caller, takes the request out of here before it brings it to its end."""

    def run() -> None:
        with theirs:
            _to_its_end(unbegun, until)
            with suppress(OSError):  # The caller is gone.
                theirs.send(b"\0")

    try:
        to_close.remove(request)
        ours, theirs = socket.socketpair()
        with ours:
            try:
                background_thread(run, "weblock-asking").start()
            except RuntimeError:
                theirs.close()
                raise
            await sent(ours.fileno(), until)
    except (OSError, RuntimeError):  # There are no more descriptors, or no more threads.
        _to_its_end(unbegun)
    finally:
        for each in taken_out(unbegun):
            each.close()


def _to_its_end(unbegun: list[Request], until: float = float("inf")) -> None:
    for request in taken_out(unbegun):
        with suppress(StopIteration):
            while True:
                request.send(None)
                if time.monotonic() > until:
                    request.close()  # The caller has given up: nothing must be acquired any more.
                    break


class SelectPoll:
    """The methods of ``select.poll`` that weblock uses, by ``select``, which Windows has too."""

    def __init__(self) -> None:
        self._fds: set[int] = set()

    def register(self, fd: int | Open, _eventmask: int, /) -> None:
        self._fds.add(_descriptor(fd))

    def unregister(self, fd: int | Open, /) -> None:
        self._fds.remove(_descriptor(fd))

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        """Return the descriptors that can be read, with their events.

        Waits at most ``timeout`` milliseconds for the first; ``None`` waits without end.
        """
        seconds = None if timeout is None else timeout / 1000
        try:
            readable, _, _ = select.select(list(self._fds), (), (), seconds)
        except (OSError, ValueError):
            # One of them was closed, and select does not say which: reading it does.
            readable = list(self._fds)
        return [(fd, READABLE) for fd in readable]


def _descriptor(fd: int | Open) -> int:
    return fd if isinstance(fd, int) else fd.fileno()


new_poll: Final[Callable[[], SelectPoll]] = getattr(select, "poll", SelectPoll)

READABLE: Final[int] = getattr(select, "POLLIN", 1)


def taken_out(items: list[T]) -> Iterator[T]:
    """Take everything out of a list, one after the other, while other threads do so, too."""
    while items:
        try:
            yield items.pop()
        except IndexError:  # Another thread has the last one.
            return
