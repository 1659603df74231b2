"""Tests in which a process forks."""

from __future__ import annotations

import os
import threading
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
