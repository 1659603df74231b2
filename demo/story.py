"""The story: a race, its end, and a worker that dies while it holds the lock."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from demo import report, trace
from demo.engine import Engine, engine_for
from demo.framework import Framework
from demo.load import Answer, client, create_item, create_items
from demo.outcome import Run, Takeover
from demo.process import ServerError
from demo.server import Application, serving
from demo.timeline import Death

ATTEMPTS: Final = 4
"""How often the race is looked for: on a busy machine, the requests may come one by one."""

IN_VAIN: Final = 0.5
"""Seconds for which they wait in vain before it is killed."""


async def tell(
    console: Console,
    *,
    engine: str,
    framework: Framework,
    requests: int,
    workers: int,
    picture: Path | None = None,
) -> int:
    """Run the demo from start to end, and return the exit status.

    Raises ``EngineError``, or ``ServerError`` if the application does not run.
    """
    with (
        tempfile.TemporaryDirectory(prefix="weblock-demo-") as name,
        console.status("waiting for the engine ...") as status,
    ):
        directory = Path(name)
        async with engine_for(engine, directory) as opened:
            report.introduce(console, opened, framework, requests, workers)
            serve = partial(serving, directory, opened, framework, workers=workers)
            status.update("1 of 3: without the lock ...")
            async with serve(locked=False) as application:
                without = await run_until_it_races(application, requests)
            status.update("2 of 3: with the lock ...")
            async with serve(locked=True) as application:
                locked = await run(application, requests)
                report.compare(console, without, locked)
                if picture:
                    report.draw_picture(console, without, locked, picture)
                status.update("3 of 3: a worker dies while it holds the lock ...")
                takeover = await kill_theholder_of(application, opened)
                report.show_takeover(console, takeover)
    return report.verdict(console, framework, without, locked, takeover)


async def run_until_it_races(application: Application, requests: int) -> Run:
    """The first run that races, or the last that was tried."""
    for _ in range(ATTEMPTS):
        tried = await run(application, requests)
        if tried.raced:
            break
    return tried


async def run(application: Application, requests: int) -> Run:
    """Many requests at once, to an application that has no items."""
    application.start_anew()
    async with client(application.url) as clients:
        answers = await asyncio.gather(*await create_items(clients, requests))
    return Run(answers, application.items(), trace.read(application.trace), application.workers)


async def kill_theholder_of(application: Application, engine: Engine) -> Takeover:
    """Kills the worker that is inside the lock, while other requests wait for it."""
    application.start_anew()
    async with client(application.url) as clients:
        doomed = asyncio.create_task(create_item(clients, work=60))
        holder = await holder_of(application, doomed)
        # The next connections go to the other workers, one to each.
        waiting = await create_items(clients, len(application.workers) - 1)
        await asyncio.wait(waiting, timeout=IN_VAIN)
        death = Death(holder, time.monotonic())
        os.kill(holder, signal.SIGKILL)
        answers = await asyncio.gather(*waiting)
        await doomed
    items, sections = application.items(), trace.read(application.trace)
    return Takeover(death, answers, items, sections, application.workers, engine)


async def holder_of(application: Application, doomed: asyncio.Task[Answer]) -> int:
    """The worker that is at work on the request."""
    while not doomed.done():
        for section in trace.read(application.trace):
            return section.worker
        await asyncio.sleep(0.01)
    raise ServerError(f"the application did not take up its work: {await doomed}")
