"""What all versions run on: three Redis servers, and the replicas behind one address."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from demo.balancer import balancing
from demo.engine import free_port, server_on
from demo.process import running
from demo.server import RUNNING, Application
from demo.trace import TRACE

SERVERS: Final = 3
"""Of Redis or Valkey, independent of one another."""

_UVICORN: Final = [
    *(sys.executable, "-m", "uvicorn", "demo.versions.app:app", "--no-access-log"),
    *("--port", "0", "--workers", "1"),
]


@asynccontextmanager
async def serving(directory: Path, *, replicas: int) -> AsyncIterator[Application]:
    """Runs all versions while the block lasts. Raises ``EngineError`` or ``ServerError``."""
    database, trace = directory / "items.sqlite3", directory / "trace.jsonl"
    async with AsyncExitStack() as stack:
        urls = []
        for number in range(SERVERS):
            port = free_port()
            server = stack.enter_context(server_on(port, "redis", directory, f"redis-{number}.log"))
            await server.until_it_says("Ready to accept connections")
            urls.append(f"redis://127.0.0.1:{port}")
        environment = {
            "DEMO_DATABASE": str(database),
            "DEMO_SERVERS": ",".join(urls),
            TRACE: str(trace),
        }
        started = [
            stack.enter_context(
                running("a replica", _UVICORN, directory / f"replica-{number}.log", environment)
            )
            for number in range(replicas)
        ]
        ports = [int((await each.until_it_says(RUNNING))[1]) for each in started]
        url = await stack.enter_async_context(balancing(ports))
        yield Application(url, [each.pid for each in started], database, trace)
