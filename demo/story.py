"""The story: a race, its end, and a worker that dies while it holds the lock."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from demo import report, trace
from demo.engine import Engine, engine_for
from demo.load import Request, ask, at_once
from demo.outcome import Run, Takeover
from demo.process import ServerError
from demo.server import Application, Framework, serving

ATTEMPTS: Final = 4
"""How often a race is looked for: on a busy machine, requests may come one by one."""

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
            environment = {
                "DEMO_ENGINE": opened.url,
                "DEMO_NAMESPACE": opened.namespace,
                "DEMO_TTL": str(opened.ttl),
            }
            command, unlocked = framework.command, {**environment, "DEMO_LOCK": "off"}
            status.update("1 of 3: without the lock ...")
            async with serving(directory, command, unlocked, workers=workers) as application:
                without = await run_until(lambda run: run.raced, application, at_once(requests))
            status.update("2 of 3: with the lock ...")
            async with serving(directory, command, environment, workers=workers) as application:
                locked = await run(application, at_once(requests))
                report.compare(console, without, locked)
                if picture:
                    report.draw(console, without, locked, picture)
                status.update("3 of 3: a worker dies while it holds the lock ...")
                takeover = await kill_a_holder(application, opened)
                report.show_takeover(console, takeover)
    return report.verdict(console, framework, without, locked, takeover)


async def run_until(
    shows: Callable[[Run], bool],
    application: Application,
    requests: Sequence[Request],
    path: str = "/items",
) -> Run:
    """The first run that shows what it is to show, or the last that was tried."""
    for _ in range(ATTEMPTS):
        tried = await run(application, requests, path)
        if shows(tried):
            break
    return tried


async def run(application: Application, requests: Sequence[Request], path: str = "/items") -> Run:
    """Some requests to an application that has no items."""
    application.start_anew()
    answers = await ask(application.urls, requests, path=path)
    return Run(answers, application.items(), trace.read(application.trace), application.workers)


async def kill_a_holder(application: Application, engine: Engine) -> Takeover:
    """Kills the first worker while it is inside the lock, and the others wait for it."""
    application.start_anew()
    workers, (url, *others) = application.workers, application.urls
    doomed = asyncio.create_task(ask([url], [Request(0, work=60)]))
    while not trace.read(application.trace):
        if doomed.done():
            raise ServerError(f"the application did not take up its work: {doomed.result()}")
        await asyncio.sleep(0.01)
    waiting = asyncio.create_task(ask(others, at_once(len(others))))
    await asyncio.wait([waiting], timeout=IN_VAIN)
    died = time.monotonic()
    os.kill(workers[0], signal.SIGKILL)
    answers, _ = await asyncio.gather(waiting, doomed)
    sections = trace.read(application.trace, until=died)
    return Takeover(Run(answers, application.items(), sections, workers), engine, died)
