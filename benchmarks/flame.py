"""Where the processor's time of a section or a request goes: samples of the stack, as a flame graph.

A signal interrupts the main thread whenever the process has spent some more time on a processor, and
the stack is noted. Time in which it waits for a server or another process does not appear.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from tests.servers import Server

from . import contenders, machine
from . import redis_contenders as peers
from . import redlock_contenders as quorums
from .contenders import Asyncio, AsyncSection, Blocking, Contender
from .flame_svg import Stack
from .redis_contenders import Target
from .web import UvicornServer
from .web_apps import APPS, WebApp, serve
from .workers import Crew, Job

EVERY: Final = 0.001
"""Seconds on a processor between two samples; the kernel makes it 1 to 4 ms."""

Stacks = Mapping[Stack, int]
"""How often each stack was seen."""


@contextmanager
def sampled() -> Iterator[Counter[Stack]]:
    """Note the stacks of the main thread, in which this must be called."""
    stacks: Counter[Stack] = Counter()

    def note(_signal: int, frame: FrameType | None) -> None:
        stacks[_stack_of(frame)] += 1

    before = signal.signal(signal.SIGPROF, note)
    signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
    try:
        yield stacks
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _stack_of(frame: FrameType | None) -> Stack:
    names: list[str] = []
    while frame:
        names.append(_name_of(frame.f_code))
        frame = frame.f_back
    return tuple(reversed(names))


def _name_of(code: CodeType) -> str:
    """Return the last part of the path, after the package, and the function."""
    path = code.co_filename.replace("\\", "/")
    for root in ("/src/", "/site-packages/", "/lib/"):
        if root in path:
            path = path.rpartition(root)[2]
            break
    else:
        path = path.rpartition("/")[2]
    return f"{path}:{code.co_name}"


def _section(contender: Contender) -> Callable[[float], Stacks]:
    """Sections of one thread or one task, with nobody else there."""
    return lambda seconds: _sections([contender], seconds)


def _sections(alike: Sequence[Contender], seconds: float) -> Stacks:
    """Sections of as many tasks as there are contenders; of one thread, if it is a blocking one."""
    with machine.scratch() as directory:
        return _sections_in(directory, alike, seconds)


def _sections_in(directory: Path, alike: Sequence[Contender], seconds: float) -> Stacks:
    (first, *_) = alike
    if isinstance(first, Blocking):
        section = first.open(directory)
        with sampled() as stacks:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                with section():
                    pass
        return stacks
    on_asyncio = [each for each in alike if isinstance(each, Asyncio)]
    return asyncio.run(_tasks([each.open(directory) for each in on_asyncio], seconds))


def _hot_file(seconds: float) -> Stacks:
    """One of four processes that pass a key on, each with two waiters."""
    contender = contenders.EMBEDDED_ASYNCIO
    with machine.scratch() as directory:
        others = Crew(contender, directory, 3)
        with others.working():
            start = time.monotonic()
            others.start(others.size * [Job(waiters=2, start=start, end=start + seconds)])
            stacks = _sections_in(directory, 2 * [contender], seconds)
            others.outcomes()
    return stacks


async def _tasks(sections: list[AsyncSection], seconds: float) -> Stacks:
    async def visit(section: AsyncSection) -> None:
        while time.monotonic() < end:
            async with section():
                pass

    end = time.monotonic() + 0.1
    await asyncio.gather(*map(visit, sections))  # opens everything
    with sampled() as stacks:
        end = time.monotonic() + seconds
        await asyncio.gather(*map(visit, sections))
    return stacks


def _on_redis(peer: peers.Peer, keys: list[str]) -> Callable[[float], Stacks]:
    def sample(seconds: float) -> Stacks:
        with Server() as server:
            return _sections([peer.at(Target(server.port, key)) for key in keys], seconds)

    return sample


def _on_quorum(seconds: float) -> Stacks:
    with ExitStack() as stack:
        ports = [stack.enter_context(Server()).port for _ in range(3)]
        return _sections([quorums.WEBLOCK_ASYNCIO.on(ports)], seconds)


def _web(name: str) -> Callable[[float], Stacks]:
    def sample(seconds: float) -> Stacks:
        (app,) = (each for each in APPS if each.name == name)
        with ExitStack() as stack:
            server = stack.enter_context(UvicornServer(app, serve=serve_sampled))
            server.measure(0.5)  # imports and opens everything
            server.pipe.send("begin")
            server.measure(seconds)
            server.pipe.send("end")
            stacks: Stacks = server.pipe.recv()
        return stacks

    return sample


def serve_sampled(app: WebApp, told: Connection) -> None:
    """Serve as ``serve`` does, and send the stacks that were seen between two messages."""

    def attend() -> None:
        told.recv()
        stacks.clear()
        told.recv()
        told.send(dict(stacks))

    with sampled() as stacks:
        threading.Thread(target=attend, daemon=True).start()
        serve(app, told)


FLAMES: dict[str, Callable[[float], Stacks]] = {
    "memory": _section(contenders.MEMORY_ASYNCIO),
    "file": _section(contenders.EMBEDDED),
    "file-asyncio": _section(contenders.EMBEDDED_ASYNCIO),
    "file-hot": _hot_file,
    "redis": _on_redis(peers.WEBLOCK, ["hot"]),
    "redis-asyncio": _on_redis(peers.WEBLOCK_ASYNCIO, ["hot"]),
    "redis-tasks": _on_redis(peers.WEBLOCK_ASYNCIO, [f"key-{number}" for number in range(32)]),
    "redis-hot": _on_redis(peers.WEBLOCK_ASYNCIO, 64 * ["hot"]),
    "redlock": _on_quorum,
    "web-fastapi": _web("Depends(lock(...)), uncontended"),
    "web-asgi": _web("LockMiddleware, uncontended"),
}
"""What can be sampled, for so many seconds."""
