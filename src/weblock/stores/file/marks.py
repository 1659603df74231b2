"""Marks of what has been done: a file for each, which a reboot and a crash leave as it is."""

from __future__ import annotations

import hashlib
import time

from .directory import Directory


def put(directory: Directory, key: str, keep: float | None) -> None:
    """Record a mark. It is on the disk when this returns."""
    if keep == 0:
        directory.remove(_file_of(key))
        return
    ends = float("inf") if keep is None else time.time() + keep
    directory.replace(_file_of(key), f"{ends}\n".encode(), durably=True)


def has(directory: Directory, key: str) -> bool:
    """Return whether a mark exists and has not ended, by the wall clock, to outlive a reboot."""
    name = _file_of(key)
    written = directory.read(name)
    if written is None:
        return False
    try:
        return time.time() < float(written)
    except ValueError as error:
        raise directory.unavailable(
            f"{directory.path}/{name}, which says that something has been done, is damaged: remove"
            " it to have that done again"
        ) from error


def _file_of(key: str) -> str:
    return f"done-{hashlib.blake2b(key.encode(), digest_size=20).hexdigest()}"
