"""The ground that the measurements stand on: awake cores, scratch space, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
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
