"""The application under uvicorn, with several worker processes, on a free port."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Final

from demo.trace import TRACE

START_LIMIT: Final = 60.0
STOP_LIMIT: Final = 5.0
"""Seconds."""

_WORKER: Final = re.compile(r"Started server process \[(\d+)\]")
_READY: Final = "Application startup complete."
_DIED: Final = "] died"


class ServerError(Exception):
    """The application could not be run; the message has what uvicorn said."""


class Server:
    """A running application: its address, its workers, and what it leaves in its directory."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self.database = directory / "items.sqlite3"
        self.trace = directory / "trace.jsonl"
        self._log: list[str] = []
        self._said_more = asyncio.Condition()
        self._ended = False

    @property
    def workers(self) -> list[int]:
        """Every worker process there has been, the oldest first."""
        return [int(pid) for pid in _WORKER.findall("".join(self._log))]

    def start_anew(self) -> None:
        """Forgets all items, and what the workers noted."""
        with closing(sqlite3.connect(self.database, timeout=30)) as database:
            database.execute("DELETE FROM item")
            database.commit()
        self.trace.write_text("")

    def items(self) -> int:
        """How many items there are."""
        with closing(sqlite3.connect(self.database, timeout=30)) as database:
            (count,) = database.execute("SELECT count(*) FROM item").fetchone()
            return int(count)

    async def until_ready(self, workers: int, *, deaths: int = 0) -> None:
        """Waits until so many workers have started since the beginning.

        Raises ``ServerError`` when more have died than may: uvicorn would try for ever.
        """
        try:
            async with asyncio.timeout(START_LIMIT):
                await self._until(
                    lambda: self._said(_READY) >= workers or self._said(_DIED) > deaths
                )
        except TimeoutError:
            self._fail(f"did not start {workers} workers in {START_LIMIT:g} s")
        if self._said(_READY) < workers:
            self._fail("did not start")

    async def listen(self, output: asyncio.StreamReader) -> None:
        """Takes down what uvicorn and its workers say, until the last of them has ended."""
        async for line in output:
            await self._note(line.decode(errors="replace"))
        self._ended = True
        await self._note("")

    async def _note(self, line: str) -> None:
        async with self._said_more:
            self._log.append(line)
            self._said_more.notify_all()

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with self._said_more:
            await self._said_more.wait_for(lambda: self._ended or condition())

    def _said(self, what: str) -> int:
        return "".join(self._log).count(what)

    def _fail(self, what: str) -> None:
        raise ServerError(f"the application {what}; uvicorn said:\n{''.join(self._log[-30:])}")


@asynccontextmanager
async def serving(*, workers: int, locked: bool) -> AsyncIterator[Server]:
    """Runs the application while the block lasts. Raises ``ServerError`` if it does not start."""
    with (
        tempfile.TemporaryDirectory(prefix="weblock-demo-") as directory,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        server = Server(f"http://127.0.0.1:{listener.getsockname()[1]}", Path(directory))
        environment = {
            "DEMO_DATABASE": str(server.database),
            "DEMO_ENGINE": f"file://{directory}/locks",
            "DEMO_LOCK": "on" if locked else "off",
            TRACE: str(server.trace),
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "uvicorn", "demo.app:app", "--no-access-log"),
            *("--workers", str(workers), "--fd", str(listener.fileno())),
            env={**os.environ, **environment},
            cwd=Path(__file__).parents[1],
            pass_fds=[listener.fileno()],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout
        listening = asyncio.create_task(server.listen(process.stdout))
        try:
            await server.until_ready(workers)
            yield server
            process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_LIMIT)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # All of them hold the other end of its pipe: when it is closed, they are gone.
            await listening
            await process.wait()
