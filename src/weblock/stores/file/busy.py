"""What a caller that waits for a record file sees: one process is stuck inside, or many pass.

A file is held for microseconds. One process that is inside all the time is stopped, or hangs, and
no other gets in before it is continued or killed. Where processes go in and out and the caller
gets in between none of them, the machine has too few processors for them, and it is worth waiting.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CROWDED: Final = 6
"""How many times its patience a caller waits for a file that is busy, but not stuck."""

_LOOK_EVERY: Final = 0.1
"""Seconds between two checks of the date of a busy file."""

_ASK_AFTER: Final = 0.5
"""The share of its patience after which a caller asks which process is inside, and asks again.

It asks seldom: while the kernel lists its locks, no process of the whole machine can lock or unlock a
file. A crowd that asks often is slowed down by its own questions, so that it asks even more often.
"""


class Busy:
    """One caller's wait for a record file, from ``now`` on.

    ``asks_who``: whether it finds out which process is inside. One that does not, since it would have
    to ask too often, takes a file to be stuck that nobody has written for as long as its patience.
    """

    def __init__(self, path: str, patience: float, now: float, *, asks_who: bool) -> None:
        self._path = path
        self._patience = patience
        self._asks_who = asks_who
        self._began = self._moved = self._looked = self._asked = now
        self._written = _written_at(path)
        self._holder: int | None = None

    def stuck(self, now: float) -> str | None:
        """Return an error if one process has been inside for the caller's patience."""
        self._look(now)
        if now - self._moved < self._patience:
            return None
        holder = _flock_holder(self._path) if self._asks_who else None
        who = f"process {holder} has" if holder else "some process has"
        return (
            f"{who} been inside {self._path} for {self._patience:.2g} s, where it should be for"
            f" microseconds; it {_what_it_does(holder)}: continue or kill it"
        )

    def crowded(self, now: float) -> str | None:
        """Return an error that says that the file was busy for too long, with many processes."""
        if now - self._began < CROWDED * self._patience:
            return None
        return (
            f"{self._path} was busy for {CROWDED * self._patience:.2g} s, though nobody stays in it:"
            " so many processes and threads lock here that this machine is too slow for them; start"
            " fewer at once, or use redis://"
        )

    def _look(self, now: float) -> None:
        """Record the last time at which the file changed hands."""
        if now - self._looked < _LOOK_EVERY:
            return
        self._looked = now
        written, before = _written_at(self._path), self._written
        self._written = written
        if written != before:
            self._moved = now
            return
        if not self._asks_who or now - max(self._moved, self._asked) < _ASK_AFTER * self._patience:
            return
        self._asked = now
        holder, former = _flock_holder(self._path), self._holder
        self._holder = holder
        if former not in (None, holder) or _state_of(holder) == "R":
            # One that runs, and is inside, waits for a processor.
            self._moved = now


def _what_it_does(process: int | None) -> str:
    states = {"T": "is stopped (SIGSTOP)", "t": "is stopped (by a debugger)"}
    return states.get(_state_of(process), "may be stopped (SIGSTOP, a debugger)")


def _state_of(process: int | None) -> str:
    """Return the letter of a process's state, on Linux: ``R`` runs or would, ``T`` is stopped."""
    try:
        return Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2][1:2]
    except OSError:
        return ""


def _written_at(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _flock_holder(path: str) -> int | None:
    """Return the process that has locked a file, on Linux."""
    try:
        inode = os.stat(path).st_ino
        with open("/proc/locks", encoding="ascii") as locks:
            for line in locks:
                fields = line.split()
                if "FLOCK" in fields and "->" not in fields and fields[5].endswith(f":{inode}"):
                    return int(fields[4])
    except OSError:
        pass
    return None
