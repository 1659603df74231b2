"""The application as several servers, each with a port of its own, behind one address."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from demo.balancer import balancing
from demo.engine import Engine
from demo.framework import Framework
from demo.process import running
from demo.trace import TRACE

RUNNING: Final = r"[Rr]unning on http://127\.0\.0\.1:(\d+)"


@dataclass(frozen=True)
class Application:
    """The running application: its address, its workers, and what they share."""

    url: str
    workers: list[int]
    database: Path
    trace: Path

    def start_anew(self, *, items: int = 0) -> None:
        """Forgets what the workers noted, and all items; so many of them are made anew."""
        with closing(sqlite3.connect(self.database, timeout=30)) as database:
            database.execute("DELETE FROM item")
            for _ in range(items):
                database.execute("INSERT INTO item DEFAULT VALUES")
            database.commit()
        self.trace.write_text("")

    def items(self) -> int:
        """How many items there are."""
        with closing(sqlite3.connect(self.database, timeout=30)) as database:
            (count,) = database.execute("SELECT count(*) FROM item").fetchone()
            return int(count)


@asynccontextmanager
async def serving(
    directory: Path,
    engine: Engine,
    framework: Framework,
    *,
    workers: int,
    locked: bool,
) -> AsyncIterator[Application]:
    """Runs the application while the block lasts. Raises ``ServerError`` if it does not start."""
    environment = {
        "DEMO_DATABASE": str(directory / "items.sqlite3"),
        "DEMO_ENGINE": engine.url,
        "DEMO_LOCK": "on" if locked else "off",
        "DEMO_NAMESPACE": engine.namespace,
        "DEMO_TTL": str(engine.ttl),
        TRACE: str(directory / "trace.jsonl"),
    }
    command = [*framework.command]
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                running("the application", command, directory / f"worker-{number}.log", environment)
            )
            for number in range(workers)
        ]
        ports = [int((await each.until_it_says(RUNNING))[1]) for each in servers]
        async with balancing(ports) as url:
            database, trace = (Path(environment[name]) for name in ("DEMO_DATABASE", TRACE))
            yield Application(url, [each.pid for each in servers], database, trace)
