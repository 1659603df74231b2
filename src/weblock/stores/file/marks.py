"""Marks of what has been done, which a reboot and a crash leave as they are.

A mark is an empty file ``done-XX/HASH-END``: the hash of its key, its first two digits, and when the mark
ends by the wall clock. A name is never half written, and a new mark of the key has another one. So a process
that writes a mark removes those in the same folder that have ended, and needs no lock for it.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path


def put(directory: str, key: str, keep: float | None) -> None:
    """Record a mark. Then it is on the disk."""
    folder, digest = _place_of(directory, key)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o700)  # Whatever the umask is.
    former, now = [*folder.iterdir()], time.time()
    mark = folder / f"{digest}-{float('inf') if keep is None else now + keep}"
    if keep != 0:
        mark.touch(0o600)
    for each in former:
        if each != mark and (each.name.startswith(digest) or _end_of(each.name) <= now):
            each.unlink(missing_ok=True)
    for place in (folder, directory):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def has(directory: str, key: str) -> bool:
    """Return whether a mark exists and has not ended."""
    folder, digest = _place_of(directory, key)
    try:
        marks = [each for each in os.listdir(folder) if each.startswith(digest)]
    except FileNotFoundError:
        return False
    return any(time.time() < _end_of(each) for each in marks)


def _place_of(directory: str, key: str) -> tuple[Path, str]:
    digest = hashlib.blake2b(key.encode(), digest_size=20).hexdigest()
    return Path(directory, f"done-{digest[:2]}"), digest


def _end_of(mark: str) -> float:
    return float(mark.partition("-")[2])
