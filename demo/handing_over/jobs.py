"""A queue of jobs in SQLite; yours is Celery's, RQ's or another."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final, NamedTuple

DATABASE: Final = os.environ.get("DEMO_DATABASE", "items.sqlite3")

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS job
(id INTEGER PRIMARY KEY, shop INT, token TEXT, work REAL,
 state TEXT DEFAULT 'queued', worker INT, fence INT)
"""


class Job(NamedTuple):
    """A report that is to be made, and what has become of it."""

    id: int
    shop: int
    token: str
    work: float
    """Seconds that it takes."""
    state: str
    """``queued``, ``running`` or ``done``."""
    worker: int | None
    fence: int | None


@contextmanager
def _database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(DATABASE, timeout=30)) as database, database:
        database.execute(_TABLE)
        yield database


def enqueue(shop: int, token: str, work: float) -> None:
    """Put a job at the end of the queue."""
    with _database() as database:
        database.execute(
            "INSERT INTO job (shop, token, work) VALUES (?, ?, ?)", [shop, token, work]
        )


def next_job() -> Job | None:
    """Return the job that has waited longest, or ``None``."""
    return _first("SELECT * FROM job WHERE state = 'queued' ORDER BY id")


def last_of(shop: int) -> Job | None:
    """Return the newest job of a shop, or ``None``."""
    return _first("SELECT * FROM job WHERE shop = ? ORDER BY id DESC", shop)


def with_id(number: int) -> Job:
    """Return a job."""
    found = _first("SELECT * FROM job WHERE id = ?", number)
    assert found
    return found


def note(job: Job, state: str, *, worker: int, fence: int) -> None:
    """Write down how far a job has come, and under which fence."""
    with _database() as database:
        database.execute(
            "UPDATE job SET state = ?, worker = ?, fence = ? WHERE id = ?",
            [state, worker, fence, job.id],
        )


def _first(query: str, *values: object) -> Job | None:
    with _database() as database:
        found = database.execute(query, values).fetchone()
        return Job(*found) if found else None
