"""Marks of what has been done: a file for each, which a reboot and a crash leave as it is."""

from __future__ import annotations

import hashlib
import time

from .directory import Directory


def put(directory: Directory, key: str, keep: float | None) -> None:
    """Notes a mark. It is on the disk when this returns."""
    if keep == 0:
        directory.remove(_file_of(key))
        return
    ends = float("inf") if keep is None else time.time() + keep
    directory.replace(_file_of(key), f"{ends}\n".encode(), durably=True)


def has(directory: Directory, key: str) -> bool:
    """Whether there is a mark that has not ended. It is by the wall clock, to outlive a reboot."""
    written = directory.read(_file_of(key))
    return written is not None and time.time() < float(written)


def _file_of(key: str) -> str:
    return f"done-{hashlib.blake2b(key.encode(), digest_size=20).hexdigest()}"
