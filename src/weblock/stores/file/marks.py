"""Marks of what has been done, as empty files, which a reboot and a crash leave as they are.

Those of a key are in a folder that the first digits of its hash name. They end by the wall clock.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from .. import marks


def put(directory: str, key: str, keep: float | None) -> None:
    """Record a mark. Then it is on the disk."""
    folder = _folder_of(directory, key)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o700)  # Whatever the umask is.
    former, now = os.listdir(folder), time.time()
    if keep != 0:
        (folder / marks.new_name(key, keep, now)).touch(0o600)
    for each in marks.replaced(former, key, now):
        (folder / each).unlink(missing_ok=True)
    for place in (folder, directory):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def has(directory: str, key: str) -> bool:
    """Return whether a mark exists and has not ended."""
    folder = _folder_of(directory, key)
    try:
        end, mark = marks.last_of(os.listdir(folder), key)
    except FileNotFoundError:
        return False
    if end <= time.time():
        return False
    with contextlib.suppress(OSError):  # Programs that clean /tmp spare what was just touched.
        os.utime(folder / mark)
    return True


def _folder_of(directory: str, key: str) -> Path:
    return Path(directory, f"done-{marks.hash_of(key)[:2]}")
