"""Marks of what has been done: a file for each, which a reboot and a crash leave as it is."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from typing import Final

from ..marks import Rounds
from .directory import Directory

_PREFIX: Final = "done-"


class Marks:
    """The marks in a directory. The wall clock says when they end, to outlive a reboot."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._rounds = Rounds()

    def put(self, key: str, keep: float | None) -> bool:
        """Record a mark, and return whether that was possible at once. Then it is on the disk."""
        if keep == 0:
            self._directory.remove(_file_of(key), durably=True)
            return True
        with self._directory.locked(shared=True) as locked:
            if locked:
                ends = float("inf") if keep is None else time.time() + keep
                self._directory.replace(_file_of(key), f"{ends}\n".encode(), durably=True)
        return locked

    def has(self, key: str) -> bool:
        """Return whether a mark exists and has not ended."""
        name = _file_of(key)
        try:
            return time.time() < self._end_of(name)
        except ValueError as error:
            raise self._directory.unavailable(
                f"{self._directory.path}/{name}, which says that something has been done, is"
                " damaged: remove it to have that done again"
            ) from error

    def remove_ended(self, now: float) -> None:
        """Remove a few marks that have ended; none while a mark is being written."""
        with contextlib.suppress(OSError):  # The next call tries again.
            if self._rounds.due(now):
                self._rounds.begin(self._names(), now)
            ended = [name for name in self._rounds.portion() if self._has_ended(name)]
            if ended:
                self._remove(ended)

    def _remove(self, names: list[str]) -> None:
        with self._directory.locked(shared=False) as locked:
            for name in names:
                # It may have been written anew before the directory was locked.
                if locked and self._has_ended(name):
                    self._directory.remove(name, durably=False)

    def _names(self) -> list[str]:
        """Return the files of all marks, without those that a killed process had half written."""
        names = os.listdir(self._directory.fd)
        return [name for name in names if name.startswith(_PREFIX) and "." not in name]

    def _has_ended(self, name: str) -> bool:
        """Return whether a mark exists and has ended. What is damaged has not."""
        try:
            return 0 < self._end_of(name) <= time.time()
        except ValueError:
            return False

    def _end_of(self, name: str) -> float:
        """Return when a mark ends; 0 if there is none. Raises ``ValueError`` if it is damaged."""
        written = self._directory.read(name)
        return 0.0 if written is None else float(written)


def _file_of(key: str) -> str:
    return f"{_PREFIX}{hashlib.blake2b(key.encode(), digest_size=20).hexdigest()}"
