"""The application in several workers, each a server with a port of its own."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from demo.process import running
from demo.trace import TRACE

_RUNNING: Final = r"[Rr]unning on (http://127\.0\.0\.1:\d+)"
_UVICORN: Final = "uvicorn --no-access-log --port 0 --workers 1"


class Framework(NamedTuple):
    """How the application is run, and the line in it that is the lock."""

    name: str
    command: str
    """A module, and its arguments."""
    file: str
    line: str


FRAMEWORKS: Final = {
    "fastapi": Framework(
        "FastAPI", f"{_UVICORN} demo.app:app", "demo/app.py", 'Depends(lock("create_item"))'
    ),
    "django": Framework(
        "Django", f"{_UVICORN} demo.django:application", "demo/django.py", 'lock("create_item")'
    ),
    "flask": Framework(
        "Flask",
        "flask --app demo.flask run --port 0 --no-reload",
        "demo/flask.py",
        'locks.lock("create_item")',
    ),
}
"""The same application, with the same lock."""

VERSIONS_COMMAND: Final = f"{_UVICORN} demo.versions.app:app"


@dataclass(frozen=True)
class Application:
    """The running application: its workers, and what they share."""

    urls: list[str]
    workers: list[int]
    database: Path
    trace: Path

    def start_anew(self) -> None:
        """Forgets what the workers noted, and all items."""
        with closing(sqlite3.connect(self.database, timeout=30)) as database:
            database.execute("DELETE FROM item")
            database.commit()
        self.trace.write_text("")

    def items(self) -> int:
        """How many items there are."""
        with closing(sqlite3.connect(self.database, timeout=30)) as database:
            (count,) = database.execute("SELECT count(*) FROM item").fetchone()
            return int(count)


@asynccontextmanager
async def serving(
    directory: Path, command: str, environment: Mapping[str, str], *, workers: int
) -> AsyncIterator[Application]:
    """Runs the application while the block lasts. Raises ``ServerError`` if it does not start."""
    database, trace = directory / "items.sqlite3", directory / "trace.jsonl"
    own = {**environment, "DEMO_DATABASE": str(database), TRACE: str(trace)}
    words = [sys.executable, "-m", *command.split()]
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                running("the application", words, directory / f"worker-{number}.log", own)
            )
            for number in range(workers)
        ]
        urls = [(await each.until_it_says(_RUNNING))[1] for each in servers]
        yield Application(urls, [each.pid for each in servers], database, trace)
