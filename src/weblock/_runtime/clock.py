"""The clocks, and what else both runtimes draw from the machine."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Monotonic seconds since boot, the same in all processes of the machine.

    Unlike ``CLOCK_MONOTONIC``, Linux's ``CLOCK_BOOTTIME`` goes on while the machine is suspended,
    as the clock of an engine elsewhere does. (Darwin's monotonic clock is used as it is.)
    """
    return time.clock_gettime(_CLOCK)


def new_owner() -> str:
    return secrets.token_hex(16)


def control() -> object:
    """The task that runs in this thread, or else the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task or _this_thread.mark


class _ThisThread(threading.local):
    """A mark for each thread; its identifier would pass on to a later thread."""

    def __init__(self) -> None:
        self.mark = object()


_this_thread = _ThisThread()
