"""Sections that are stopped (SIGSTOP) before one of their statements, while another follows them.

``python -m tests.contrib.stopped_sections DATABASE ISOLATION ENGINE GUARDED`` is the process that is
stopped: for each line it reads, it runs one section, and stops itself before its ``n``-th step.
``Rounds`` is the one that follows, and counts the commits of those that it had followed.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Column, Integer, MetaData, Table, create_engine, event, func, insert, select
from sqlalchemy import Engine as Database
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from weblock import LeaseLost, Locks, LockTimeout
from weblock.contrib.sqlalchemy import fence_table, guard

TOP = Path(__file__).parents[2]

STOPPED = "stopped"

metadata = MetaData()
fence_table(metadata)
log = Table(
    "log",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("number", Integer, nullable=False),
    Column("by", Integer, nullable=False),
)


def database_at(url: str, isolation: str) -> Database:
    """A database, and how it isolates; one that is locked is waited for only briefly."""
    sqlite = url.startswith("sqlite")
    brief: dict[str, Any] = {"timeout": 0.02} if sqlite else {"prepare_threshold": None}
    if url.startswith("mysql"):
        brief = {"init_command": "SET innodb_lock_wait_timeout = 0"}  # Does not wait.
    levels = {} if sqlite else {"isolation_level": isolation}
    database = create_engine(url, connect_args=brief, **levels)
    if sqlite and isolation == "WAL":
        event.listen(database, "connect", lambda raw, _: raw.execute("PRAGMA journal_mode=wal"))
    return database


def section(session: Session) -> None:
    """Counts, and adds one: no number is there twice, as long as no other section is in between."""
    number = session.scalar(select(func.count()).select_from(log)) or 0
    session.execute(insert(log).values(number=number, by=os.getpid()))
    session.commit()


class Rounds:
    """A process that is stopped again and again, and what became of its sections."""

    def __init__(self, url: str, isolation: str, engine: str, *, guarded: bool) -> None:
        self.database = database_at(url, isolation)
        metadata.drop_all(self.database)
        metadata.create_all(self.database)
        self.guarded = guarded
        self.outcomes: Counter[str] = Counter()
        self.waited = 0
        self.stale = 0
        self._locks = Locks.from_url(engine, wait=60)
        words = [url, isolation, engine, "guarded" if guarded else ""]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.contrib.stopped_sections", *words],
            cwd=TOP,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, step: int) -> bool:
        """One round: stopped before this step. Whether the section had so many."""
        assert self._process.stdin
        self._process.stdin.write(f"{step}\n")
        self._process.stdin.flush()
        if self._said() != STOPPED:
            return False
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), status
        assert self._locks.force_release("section")
        followed = self._follow()
        os.kill(self._process.pid, signal.SIGCONT)
        self.outcomes[self._said()] += 1
        while not followed:
            followed = self._follow()
        return True

    def count(self) -> None:
        """Counts the commits that were made by a holder on what was no longer so."""
        with self.database.connect() as connection:
            numbers = connection.execute(select(log.c.number)).scalars().all()
        self.stale = len(numbers) - len(set(numbers))

    def _said(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def _follow(self) -> bool:
        """A section of the next holder; not, if the stopped one has the database or its lease locked."""
        try:
            with self._locks.hold("section") as lease, Session(self.database) as session:
                if self.guarded:
                    guard(session, lease, fence=True, wait=0.02)
                section(session)
        except (LockTimeout, DBAPIError):
            self.waited += 1
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._locks.close()
        self.database.dispose()


class Stopping:
    """Stops this process before one of the next steps: each statement, and the COMMIT."""

    def __init__(self, database: Database) -> None:
        self.left = -1
        event.listen(database, "before_cursor_execute", self.step)
        commit = database.dialect.do_commit
        database.dialect.do_commit = lambda raw: (self.step(), commit(raw))  # type: ignore[method-assign]

    def step(self, *_what: Any) -> None:
        """Counts the steps of a section."""
        if self.left == 0:
            say(STOPPED)
            os.kill(os.getpid(), signal.SIGSTOP)
        self.left -= 1


def main(url: str, isolation: str, engine: str, guarded: str) -> None:
    """Runs a section for each line, and says what became of it."""
    logging.disable()  # That leases are lost is what this is about.
    database = database_at(url, isolation)
    stopping = Stopping(database)
    locks = Locks.from_url(engine, wait=60)
    for line in sys.stdin:
        stopping.left = int(line)
        lease = locks.acquire("section", renew=False, ttl=600)
        stopping.step()  # Before the first statement.
        try:
            with Session(database) as session:
                if guarded:
                    guard(session, lease, fence=True, wait=1)
                section(session)
            said = "committed"
        except LeaseLost as error:
            said = type(error).__name__
        except DBAPIError as error:
            said = type(error.orig).__name__
        stopping.left = -1
        try:
            lease.release()
        except LeaseLost:
            pass
        say(said)


def say(line: str) -> None:
    """Tells the other process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
