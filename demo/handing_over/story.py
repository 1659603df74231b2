"""The story: a report is made by a worker, the next worker dies, and another one takes its place."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import httpx
from rich.console import Console

from demo.engine import Engine, engine_for
from demo.framework import HANDING_OVER
from demo.handing_over import LONG_WORK, WORK, report
from demo.handing_over.outcome import Report, Told
from demo.load import Answer, client
from demo.process import Process, ServerError, running
from demo.server import environment_of, serving

PATH: Final = "/shops/7/report"

PATIENCE: Final = 120.0
"""Seconds until a state that does not come is given up."""


async def tell(console: Console, *, engine: str, requests: int, workers: int) -> int:
    """Show it, and return the exit status.

    Raises ``EngineError``, or ``ServerError`` if the application or a worker does not run.
    """
    with (
        tempfile.TemporaryDirectory(prefix="weblock-demo-") as name,
        console.status("waiting for the engine ...") as status,
    ):
        directory = Path(name)
        async with (
            engine_for(engine, directory) as opened,
            serving(directory, opened, HANDING_OVER, workers=workers, locked=True) as application,
            client(application.url) as clients,
        ):
            report.introduce(console, opened, requests)
            status.update("1 of 3: a report is made ...")
            done = Reporting(clients)
            await done.ask_for_it(requests)
            await done.until("queued")
            with worker(directory, opened, "worker-a.log") as first:
                await done.until("done")
                report.tell(console, "A worker makes the report", done.report)
                status.update("2 of 3: a worker dies ...")
                killed = Reporting(clients)
                await killed.ask_for_it(requests, work=LONG_WORK)
                await killed.until("running", silently="queued")
                os.kill(first.pid, signal.SIGKILL)
                await killed.until("abandoned")
            report.tell(console, f"Its worker dies: kill -9 {first.pid}", killed.report)
            status.update("3 of 3: another worker ...")
            again = Reporting(clients)
            await again.ask_for_it(requests)
            with worker(directory, opened, "worker-b.log"):
                await again.until("done", silently="queued")
            report.tell(console, "The key is free, and another worker makes it", again.report)
    return report.verdict(console, done.report, killed.report, again.report)


def worker(directory: Path, engine: Engine, log: str) -> AbstractContextManager[Process]:
    """A worker that runs while the block lasts."""
    command = [sys.executable, "-m", "demo.handing_over.worker"]
    environment = environment_of(directory, engine, locked=True)
    return running("the worker", command, directory / log, environment)


class Reporting:
    """Asks for a report, and for its state until there is one that is waited for."""

    def __init__(self, clients: httpx.AsyncClient) -> None:
        self._clients = clients
        self._answers: list[Answer] = []
        self._granted: int | None = None
        self._told: list[Told] = []

    @property
    def report(self) -> Report:
        """What has come of it so far."""
        return Report(self._answers, self._granted, self._told)

    async def ask_for_it(self, requests: int, *, work: float = WORK) -> None:
        """Send so many requests at once."""
        responses = await asyncio.gather(
            *(self._clients.post(PATH, params={"work": work}) for _ in range(requests))
        )
        for response in responses:
            said: dict[str, Any] = response.json()
            if response.status_code == 202:
                self._granted = said["fence"]
            text = str(said.get("state", said.get("detail")))
            self._answers.append(Answer(response.status_code, text, said.get("code", "")))

    async def until(self, state: str, *, silently: str = "") -> None:
        """Ask for the state until it is ``state``. Raises ``ServerError`` if it does not come.

        ``silently`` is a state that may come before, and is not noted.
        """
        give_up_at = time.monotonic() + PATIENCE
        while time.monotonic() < give_up_at:
            told = Told(**(await self._clients.get(PATH)).json())
            if told.state != silently and told not in self._told:
                self._told.append(told)
            if told.state == state:
                return
            await asyncio.sleep(0.02)
        raise ServerError(f"the report is never {state}; it was {self._told}")
