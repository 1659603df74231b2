"""The ground that the measurements stand on: awake cores, scratch space, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cache
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

processes = get_context("spawn")
"""Fresh interpreters, not forks: a worker starts as a web worker does."""


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory for one case, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="weblock-benchmark-") as directory:
        yield Path(directory)


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The sources of the package at a commit, gone afterwards. Raises if git has no such commit."""
    with scratch() as directory:
        archive = directory / "src.tar"
        subprocess.run(["git", "archive", f"--output={archive}", commit, "src"], check=True)
        with tarfile.open(archive) as packed:
            packed.extractall(directory, filter="data")
        yield directory / "src"


@contextlib.contextmanager
def importing_from(sources: Path | None) -> Iterator[None]:
    """Processes that are started here import from there first: they get the path of their parent."""
    path = [*sys.path]
    if sources:
        sys.path.insert(0, str(sources))
    try:
        yield
    finally:
        sys.path[:] = path


@contextlib.contextmanager
def awake() -> Iterator[None]:
    """Keeps each core from sleeping, at the lowest priority.

    On Linux the scheduler counts such a core as idle, so that whoever is woken may have it at once.
    A core that sleeps takes some 45 µs to wake, which every hand-off would pay, and which would
    squeeze every ratio towards 1.
    """
    spinners = [processes.Process(target=_spin) for _ in range(os.cpu_count() or 1)]
    with ended(spinners):
        for spinner in spinners:
            spinner.start()
        yield


class Conditions:
    """What a measurement was made on: date, commit, machine, and what else the machine did."""

    def __init__(self) -> None:
        self._load = os.getloadavg()[0]
        self._before = _processor_time()

    def __str__(self) -> str:
        """The conditions since this was made."""
        spent, stolen = map(int.__sub__, _processor_time(), self._before)
        return (
            f"{time.strftime('%Y-%m-%d')}, commit {_commit()}, {os.cpu_count()} cores,"
            f" {platform.system()}, Python {platform.python_version()}, load {self._load:.1f} before,"
            f" {stolen / max(1, spent):.1%} of the processors stolen:"
            f" scripts/benchmark {' '.join(sys.argv[1:])}"
        )


@cache
def _commit() -> str:
    """Return what was checked out when this was asked first, before a page was written."""
    git = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(git, capture_output=True, text=True, check=False).stdout
    return found.strip() or "unknown"


def cpu_seconds(pid: int) -> float:
    """Return how long a process has been on a CPU."""
    return time.clock_gettime(~pid << 3 | 2)  # Linux's number of that clock.


def _processor_time() -> tuple[int, int]:
    """Return the ticks of all processors since the machine started, and the stolen ones of them."""
    try:
        first = Path("/proc/stat").read_text().splitlines()[0]
    except OSError:
        return 0, 0
    ticks = [int(each) for each in first.split()[1:9]]
    return sum(ticks), ticks[7]


@contextlib.contextmanager
def ended(started: Sequence[BaseProcess]) -> Iterator[None]:
    """Has none of the processes live on, whatever happens."""
    try:
        yield
    finally:
        for process in started:
            if process.pid:
                process.kill()
        for process in started:
            if process.pid:
                process.join()


def is_worker() -> None:
    """Called first in a process of ours: the parent alone is interrupted, and takes us along."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()


def _spin() -> None:
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    is_worker()
    while True:
        pass


def _die_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
