"""Processes of a test: they end with it, however it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_DIES_WITH_PARENT = 1
_prctl = ctypes.CDLL(None).prctl if hasattr(ctypes.CDLL(None), "prctl") else None

# What dies with its parent dies with the thread that started it, so one that lasts starts them all.
_starter = ThreadPoolExecutor(1, thread_name_prefix="server-starter")


def spawn(
    command: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    user: int | None = None,
) -> subprocess.Popen[bytes]:
    """A process that writes to ``log``, with a user id of its own where ``user`` names one."""

    def start() -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return subprocess.Popen(
                command,
                env=None if env is None else {**os.environ, **env},
                user=user,
                group=user,
                extra_groups=None if user is None else [],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - it starts no thread and takes no lock
            )

    return _starter.submit(start).result()


def _die_with_parent() -> None:
    """Nothing that a test starts outlives it, however it ends."""
    if _prctl:
        _prctl(_DIES_WITH_PARENT, signal.SIGKILL)
