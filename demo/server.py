"""The application under uvicorn, with several worker processes, on a free port."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from demo.trace import TRACE

START_LIMIT: Final = 30.0
STOP_LIMIT: Final = 5.0
"""Seconds."""

STARTED: Final = "Application startup complete."


class Server(NamedTuple):
    """A running application: its address, and what it leaves in its directory."""

    url: str
    database: Path
    trace: Path

    def start_anew(self) -> None:
        """Forgets all items, and what the workers noted."""
        with closing(sqlite3.connect(self.database)) as database:
            database.execute("DROP TABLE IF EXISTS item")
            database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY)")
            database.commit()
        self.trace.write_text("")

    def items(self) -> int:
        """How many items there are."""
        with closing(sqlite3.connect(self.database)) as database:
            (count,) = database.execute("SELECT count(*) FROM item").fetchone()
            return int(count)


@contextmanager
def serving(directory: Path, *, workers: int, locked: bool) -> Iterator[Server]:
    """Runs the application while the block lasts."""
    directory.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(
            f"http://127.0.0.1:{listener.getsockname()[1]}",
            directory / "items.sqlite",
            directory / "trace.jsonl",
        )
        server.start_anew()
        environment = {
            **os.environ,
            "DEMO_DATABASE": str(server.database),
            "DEMO_ENGINE": f"file://{directory}/locks",
            "DEMO_LOCK": "on" if locked else "off",
            TRACE: str(server.trace),
        }
        log = directory / "uvicorn.log"
        command = ["uvicorn", "demo.app:app", "--workers", str(workers)]
        command += ["--fd", str(listener.fileno()), "--no-access-log"]
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=environment,
                cwd=Path(__file__).parents[1],
                pass_fds=[listener.fileno()],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            _wait_for_workers(process, log, workers)
            yield server
        finally:
            _stop(process)


def _wait_for_workers(process: subprocess.Popen[bytes], log: Path, workers: int) -> None:
    give_up_at = time.monotonic() + START_LIMIT
    while log.read_text().count(STARTED) < workers:
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise RuntimeError(f"the application did not start:\n{log.read_text()}")
        time.sleep(0.05)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_LIMIT)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
