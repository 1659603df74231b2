"""Tests in which a process forks."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import warnings

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

_turn = threading.Lock()
"""filelock, which the benchmarks import, has a process refuse to fork while another thread of it does."""


def fork() -> int:
    """Forks beside threads, which may be other tests': Python 3.12 and later warn of them."""
    with _turn, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def fork_in_c() -> int:
    """Forks as a server written in C does: no hook of Python's runs, before or after it.

    Unlike ``CDLL``, ``PyDLL`` keeps the interpreter's lock, so that this thread has it in the child. No other
    thread asks for it during the fork: the child would wait for a thread that does not exist there.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    # Threads that waited for the lock before have asked by then, and next ask in an hour.
    time.sleep(10 * interval)
    try:
        return ctypes.PyDLL(None).fork()
    finally:
        sys.setswitchinterval(interval)
