"""The story: a holder sleeps through its lease, another follows, and the first one wakes up."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from rich.console import Console

from demo import trace
from demo.engine import engine_for
from demo.framework import GUARDED
from demo.guard import TTL, WORK, report
from demo.guard.outcome import Sleep
from demo.load import client, create_item
from demo.outcome import BOUND
from demo.server import Application, serving
from demo.story import ATTEMPTS, holder_of

PATIENCE: Final = 15.0
"""Seconds that the next holder may take. A worker may have been stopped at a moment at which it kept
others from the engine or from the database; it is woken up then, and all of it is tried again."""


async def tell(console: Console, *, engine: str, workers: int) -> int:
    """Show it without the guard and with it, and return the exit status.

    Raises ``EngineError``, or ``ServerError`` if the application does not run.
    """
    with (
        tempfile.TemporaryDirectory(prefix="weblock-demo-") as name,
        console.status("waiting for the engine ...") as status,
    ):
        directory = Path(name)
        async with engine_for(engine, directory) as opened:
            report.introduce(console, opened, workers)
            async with serving(
                directory, opened, GUARDED, workers=workers, locked=True, ttl=TTL
            ) as application:
                status.update("1 of 2: without the guard ...")
                without = await until_it_sleeps_through(application, "/locked/items")
                status.update("2 of 2: with the guard ...")
                guarded = await until_it_sleeps_through(application, "/guarded/items")
    report.compare(console, without, guarded)
    return report.verdict(console, without, guarded)


async def until_it_sleeps_through(application: Application, path: str) -> Sleep:
    """The first try in which another worker followed the stopped one, or the last one."""
    for _ in range(ATTEMPTS):
        tried = await sleep_through(application, path)
        if tried.taken_over:
            break
    return tried


async def sleep_through(application: Application, path: str) -> Sleep:
    """Stops the worker that has the lock until another one has committed, then lets it go on."""
    application.start_anew(items=BOUND - 1)
    async with client(application.url) as clients:
        sleeper = asyncio.create_task(create_item(clients, path, work=WORK))
        holder = await holder_of(application, sleeper)
        os.kill(holder, signal.SIGSTOP)
        stopped = time.monotonic()
        following = asyncio.create_task(create_item(clients, path, work=WORK))
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(following), PATIENCE)
        woken = time.monotonic()
        os.kill(holder, signal.SIGCONT)
        answers = await asyncio.gather(sleeper, following)
    sections = trace.read(application.trace)
    return Sleep(
        holder, stopped, woken, *answers, application.items(), sections, application.workers
    )
