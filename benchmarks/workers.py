"""Worker processes that compete for one key.

The parent tells each worker what to do over a pipe, and when; all of them read the same monotonic
clock. Each section writes down when it was entered and left, and adds one to a counter in a file
without any care, so that two sections that overlap are found out. Where several may be open at the
same time, only the moments tell how many were.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import mmap
import os
import struct
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from . import machine
from .contenders import Asyncio, AsyncSection, Blocking, Contender, Section

_COUNTER = struct.Struct("<Q")


class Visit(NamedTuple):
    """One critical section, in monotonic seconds."""

    entered: float
    left: float


def most_at_once(visits: Collection[Visit]) -> int:
    """Return how many sections were open at the same time, at most.

    A section that is left at the very moment at which another is entered is no longer open.
    """
    moments = [(visit.entered, 1) for visit in visits] + [(visit.left, -1) for visit in visits]
    return max(itertools.accumulate(step for _, step in sorted(moments)), default=0)


@dataclass(frozen=True)
class Job:
    """What a worker's waiters do: sections of ``work`` seconds, one after the other.

    They do so from ``start`` until ``end``, or until each has had ``limit`` of them. CPU time is
    counted from ``settle`` seconds after ``start`` until ``end``.
    """

    waiters: int
    start: float
    end: float
    work: float = 0.0
    settle: float = 0.0
    limit: int | None = None

    def goes_on(self, done: int) -> bool:
        """Whether a waiter that has ``done`` so many sections wants another."""
        return time.monotonic() < self.end if self.limit is None else done < self.limit


@dataclass(frozen=True)
class Outcome:
    """The visits of each waiter, and the CPU seconds of the whole worker."""

    visits: list[list[Visit]]
    cpu: float


class Crew:
    """Several processes, all with the same contender."""

    def __init__(self, contender: Contender, directory: Path, size: int) -> None:
        self.contender = contender
        self.size = size
        self._counter = directory / "counter"
        self._counter.write_bytes(_COUNTER.pack(0))
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
            for process in self.processes:
                process.start()
            for pipe in self._pipes:
                pipe.recv()
            yield

    def run(self, jobs: list[Job], *, one_key: bool = True, at_once: int = 1) -> list[Outcome]:
        """Gives each process its job, and waits for all.

        Raises if more than ``at_once`` sections of the one key were open at the same time.
        """
        before = self._count()
        self.start(jobs)
        outcomes = self.outcomes()
        visits = [visit for outcome in outcomes for each in outcome.visits for visit in each]
        name, counted = self.contender.name, self._count() - before
        # Sections that may overlap lose updates rightly.
        if at_once == 1 and counted != len(visits):
            raise RuntimeError(f"{name} lost updates: {counted} counted of {len(visits)}")
        if one_key and (found := most_at_once(visits)) > at_once:
            raise RuntimeError(f"{name} let {found} sections overlap, where {at_once} may be open")
        return outcomes

    def start(self, jobs: list[Job]) -> None:
        """Gives each process its job."""
        for pipe, job in zip(self._pipes, jobs, strict=True):
            pipe.send(job)

    def outcomes(self) -> list[Outcome]:
        """Waits for all processes."""
        return [pipe.recv() for pipe in self._pipes]

    def _count(self) -> int:
        count: int = _COUNTER.unpack(self._counter.read_bytes())[0]
        return count


class _Worker:
    def __init__(self, contender: Contender, directory: Path) -> None:
        self._contender = contender
        self._directory = directory
        self._file = (directory / "counter").open("r+b")
        self._counter = mmap.mmap(self._file.fileno(), _COUNTER.size)
        self._sections: list[Section] = []
        self._async_sections: list[AsyncSection] = []

    def run_blocking(self, contender: Blocking, job: Job) -> Outcome:
        while len(self._sections) < job.waiters:
            self._sections.append(contender.open(self._directory))
        visits: list[list[Visit]] = [[] for _ in range(job.waiters)]
        threads = [
            threading.Thread(target=self._wait, args=(section, job, each), daemon=True)
            for section, each in zip(self._sections, visits, strict=False)
        ]
        for thread in threads:
            thread.start()
        time.sleep(_left(job.start + job.settle))
        cpu = time.process_time()
        time.sleep(_left(job.end))
        cpu = time.process_time() - cpu
        for thread in threads:
            thread.join()
        return Outcome(visits, cpu)

    async def run_asyncio(self, contender: Asyncio, job: Job) -> Outcome:
        while len(self._async_sections) < job.waiters:
            self._async_sections.append(contender.open(self._directory))
        visits: list[list[Visit]] = [[] for _ in range(job.waiters)]
        tasks = [
            asyncio.create_task(self._wait_asyncio(section, job, each))
            for section, each in zip(self._async_sections, visits, strict=False)
        ]
        await asyncio.sleep(_left(job.start + job.settle))
        cpu = time.process_time()
        await asyncio.sleep(_left(job.end))
        cpu = time.process_time() - cpu
        await asyncio.gather(*tasks)
        return Outcome(visits, cpu)

    def _wait(self, section: Section, job: Job, visits: list[Visit]) -> None:
        time.sleep(_left(job.start))
        while job.goes_on(len(visits)):
            with section():
                entered = time.monotonic()
                count = self._read()
                if job.work:
                    time.sleep(job.work)
                self._write(count + 1)
                visits.append(Visit(entered, time.monotonic()))

    async def _wait_asyncio(self, section: AsyncSection, job: Job, visits: list[Visit]) -> None:
        await asyncio.sleep(_left(job.start))
        while job.goes_on(len(visits)):
            async with section():
                entered = time.monotonic()
                count = self._read()
                if job.work:
                    await asyncio.sleep(job.work)
                self._write(count + 1)
                visits.append(Visit(entered, time.monotonic()))

    def _read(self) -> int:
        count: int = _COUNTER.unpack_from(self._counter)[0]
        return count

    def _write(self, count: int) -> None:
        _COUNTER.pack_into(self._counter, 0, count)


def _work(contender: Contender, directory: Path, pipe: Connection) -> None:
    machine.is_worker()
    threading.excepthook = _end_loudly
    worker = _Worker(contender, directory)
    pipe.send("ready")
    with contextlib.suppress(EOFError):  # the parent has gone
        if isinstance(contender, Asyncio):
            asyncio.run(_work_asyncio(worker, contender, pipe))
        while isinstance(contender, Blocking):
            pipe.send(worker.run_blocking(contender, pipe.recv()))


async def _work_asyncio(worker: _Worker, contender: Asyncio, pipe: Connection) -> None:
    while True:
        pipe.send(await worker.run_asyncio(contender, pipe.recv()))


def _end_loudly(failure: threading.ExceptHookArgs) -> None:
    """Ends the worker, for the others would wait for ever for a waiter that failed."""
    threading.__excepthook__(failure)
    os._exit(1)


def _left(until: float) -> float:
    return max(0.0, until - time.monotonic())
