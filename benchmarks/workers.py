"""Worker processes that compete for one key.

The parent tells each worker what to do over a pipe, and when; all of them read the same monotonic
clock. Each section notes when it was entered and left, so that two that overlap are found out.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from . import machine
from .contenders import Asyncio, AsyncSection, Blocking, Contender, Section


class Visit(NamedTuple):
    """One critical section, in monotonic seconds."""

    entered: float
    left: float


Visits = list[list[Visit]]
"""Those of each waiter."""


@dataclass(frozen=True)
class Job:
    """What a worker's waiters do from ``start`` until ``end``: sections of ``work`` seconds."""

    waiters: int
    start: float
    end: float
    work: float = 0.0


class Crew:
    """Several processes, all with the same contender."""

    def __init__(self, contender: Contender, directory: Path, size: int) -> None:
        self.contender = contender
        self.size = size
        self._pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []
        for _ in range(size):
            ours, theirs = machine.processes.Pipe()
            self._pipes.append(ours)
            self.processes.append(
                machine.processes.Process(target=_work, args=(contender, directory, theirs))
            )

    @contextmanager
    def working(self) -> Iterator[None]:
        """Starts the processes, and ends them."""
        with machine.ended(self.processes):
            with machine.importing_from(self.contender.sources):
                for process in self.processes:
                    process.start()
            for pipe in self._pipes:
                pipe.recv()
            yield

    def run(self, jobs: list[Job], *, one_key: bool = True) -> Visits:
        """Gives each process its job, and waits for all. Raises if sections of one key overlapped."""
        self.start(jobs)
        waiters = self.visits()
        turns = sorted(itertools.chain(*waiters))
        overlaps = sum(later.entered < one.left for one, later in itertools.pairwise(turns))
        if one_key and overlaps:
            raise RuntimeError(f"{self.contender.name} let {overlaps} of {len(turns)} overlap")
        return waiters

    def start(self, jobs: list[Job]) -> None:
        """Gives each process its job."""
        for pipe, job in zip(self._pipes, jobs, strict=True):
            pipe.send(job)

    def visits(self) -> Visits:
        """Waits for all processes; the visits of all their waiters."""
        return [visits for pipe in self._pipes for visits in pipe.recv()]


def _work(contender: Contender, directory: Path, pipe: Connection) -> None:
    machine.is_worker()
    threading.excepthook = _end_loudly
    pipe.send("ready")
    with contextlib.suppress(EOFError):  # the parent has gone
        if isinstance(contender, Asyncio):
            asyncio.run(_work_asyncio(contender, directory, pipe))
        else:
            _work_blocking(contender, directory, pipe)


def _work_blocking(contender: Blocking, directory: Path, pipe: Connection) -> None:
    def wait(section: Section, job: Job, visits: list[Visit]) -> None:
        time.sleep(_left(job.start))
        while time.monotonic() < job.end:
            with section():
                entered = time.monotonic()
                if job.work:
                    time.sleep(job.work)
                visits.append(Visit(entered, time.monotonic()))

    sections: list[Section] = []
    while True:
        job: Job = pipe.recv()
        sections += [contender.open(directory) for _ in range(job.waiters - len(sections))]
        visits: Visits = [[] for _ in range(job.waiters)]
        threads = [
            threading.Thread(target=wait, args=(section, job, each), daemon=True)
            for section, each in zip(sections, visits, strict=False)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pipe.send(visits)


async def _work_asyncio(contender: Asyncio, directory: Path, pipe: Connection) -> None:
    async def wait(section: AsyncSection, job: Job, visits: list[Visit]) -> None:
        await asyncio.sleep(_left(job.start))
        while time.monotonic() < job.end:
            async with section():
                entered = time.monotonic()
                if job.work:
                    await asyncio.sleep(job.work)
                visits.append(Visit(entered, time.monotonic()))

    sections: list[AsyncSection] = []
    while True:
        job: Job = pipe.recv()
        sections += [contender.open(directory) for _ in range(job.waiters - len(sections))]
        visits: Visits = [[] for _ in range(job.waiters)]
        pairs = zip(sections, visits, strict=False)
        await asyncio.gather(*(wait(section, job, each) for section, each in pairs))
        pipe.send(visits)


def _end_loudly(failure: threading.ExceptHookArgs) -> None:
    """Ends the worker, for the others would wait for ever for a waiter that failed."""
    threading.__excepthook__(failure)
    os._exit(1)


def _left(until: float) -> float:
    return max(0.0, until - time.monotonic())
