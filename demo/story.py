"""The story: a race, its end, and a worker that dies while it holds the lock."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Final

from rich.console import Console

from demo import report, trace
from demo.load import Answer, client, create_item, create_items
from demo.outcome import Run, Takeover
from demo.server import Server, ServerError, serving
from demo.timeline import Death

ATTEMPTS: Final = 4
"""How often a run may be repeated that shows nothing: the system gave one worker all requests."""

WAITING: Final = 8
"""Requests that wait for the worker that is killed: enough for some to be at other workers."""

IN_VAIN: Final = 0.5
"""Seconds for which they wait in vain before it is killed."""


async def tell(console: Console, *, requests: int, workers: int) -> int:
    """The demo, from start to end. Returns the exit status."""
    report.introduce(console, requests, workers)
    with console.status("1 of 3: without the lock ..."):
        async with serving(workers=workers, locked=False) as server:
            without = await run_until(server, requests, lambda run: run.raced)
    with console.status("2 of 3: with the lock ...") as status:
        async with serving(workers=workers, locked=True) as server:
            # It is repeated if only one worker took part, never if it went wrong.
            locked = await run_until(server, requests, lambda run: run.across or not run.held)
            report.compare(console, without, locked)
            status.update("3 of 3: a worker dies while it holds the lock ...")
            takeover = await kill_the_holder(server, workers)
            report.show_takeover(console, takeover)
    return report.verdict(console, without, locked, takeover)


async def run_until(server: Server, requests: int, convincing: Callable[[Run], bool]) -> Run:
    """The first run that is convincing, or the last that was tried."""
    for _ in range(ATTEMPTS):
        run = await run_once(server, requests)
        if convincing(run):
            break
    return run


async def run_once(server: Server, requests: int) -> Run:
    """Many requests at once, to an application that has no items."""
    server.start_anew()
    async with client(server.url) as clients:
        answers = await asyncio.gather(*await create_items(clients, requests))
    return Run(answers, server.items(), trace.read(server.trace), server.workers)


async def kill_the_holder(server: Server, workers: int) -> Takeover:
    """Kills the worker that is inside the lock, while other requests wait for it."""
    server.start_anew()
    before = server.workers
    async with client(server.url) as clients:
        doomed = asyncio.create_task(create_item(clients, work=60))
        holder = await _holder(server, doomed)
        waiting = await create_items(clients, WAITING)
        await asyncio.wait(waiting, timeout=IN_VAIN)
        death = Death(holder, time.monotonic())
        os.kill(holder, signal.SIGKILL)
        # Those that the dead worker had accepted get no answer.
        answers = [answer for answer in await asyncio.gather(*waiting) if answer.status]
        if not answers:
            answers = [await create_item(clients)]
        await doomed
    items, sections = server.items(), trace.read(server.trace)
    await server.until_ready(workers + 1, deaths=1)
    return Takeover(death, answers, items, sections, before, server.workers[-1])


async def _holder(server: Server, doomed: asyncio.Task[Answer]) -> int:
    """The worker that is at work on the request."""
    while not doomed.done():
        for section in trace.read(server.trace):
            return section.worker
        await asyncio.sleep(0.01)
    raise ServerError(f"the application did not take up its work: {await doomed}")
