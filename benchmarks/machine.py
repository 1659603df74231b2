"""The ground that the measurements stand on: awake cores, scratch space, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

processes = get_context("spawn")
"""Fresh interpreters, not forks: a worker starts as a web worker does."""


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory for one case, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="weblock-benchmark-") as directory:
        yield Path(directory)


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


def description() -> str:
    """Return the date, the commit, and what the machine is."""
    git = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    python, load = platform.python_version(), os.getloadavg()[0]
    return (
        f"{time.strftime('%Y-%m-%d')}, commit {commit or 'unknown'}, {os.cpu_count()} cores,"
        f" {platform.system()}, Python {python}, load {load:.1f}"
    )


class Calm:
    """Whether the machine has done much else since this was made: then no figure of it is to be kept."""

    MOST_LOAD = 0.5
    """Processes that wanted a processor before we began, on average over a minute."""
    MOST_STOLEN = 0.01
    """Share of the time in which another virtual machine had our processors."""

    def __init__(self) -> None:
        self._load = os.getloadavg()[0]
        self._before = _processor_time()

    def disturbances(self) -> list[str]:
        """Return what speaks against the figures; nothing on a quiet machine."""
        found = []
        if self._load > self.MOST_LOAD:
            found.append(
                f"the load was {self._load:.1f} before it began (at most {self.MOST_LOAD})"
            )
        spent, stolen = (
            now - was for now, was in zip(_processor_time(), self._before, strict=True)
        )
        if stolen > self.MOST_STOLEN * spent:
            share = stolen / max(1, spent)
            found.append(f"{share:.1%} of the time was stolen (at most {self.MOST_STOLEN:.0%})")
        return found


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


def interrupt_on_sigterm() -> None:
    """Has SIGTERM end us as Ctrl-C does, so that everything is cleaned up."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


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
