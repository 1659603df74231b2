"""Marks of what has been done, which a reboot and a crash leave as they are.

A mark is an empty file ``done-XX/HASH-END-RANDOM``: the hash of its key, its first two digits, and when the
mark ends by the wall clock. A name is never half written, and a new mark of the key has another one. So a
process that writes a mark removes those in the same folder that were there before, and needs no lock for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import secrets
import time
from pathlib import Path


def put(directory: str, key: str, keep: float | None) -> None:
    """Record a mark. Then it is on the disk."""
    folder, digest = _place_of(directory, key)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o700)  # Whatever the umask is.
    former, now = [*folder.iterdir()], time.time()
    if keep != 0:
        end = math.inf if keep is None else now + keep
        (folder / f"{digest}-{end}-{secrets.token_hex(4)}").touch(0o600)
    for each in former:
        if each.name.startswith(digest) or _end_of(each.name) <= now:
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
    for each in marks:
        if time.time() < _end_of(each):
            with contextlib.suppress(
                OSError
            ):  # Programs that clean /tmp spare what was just touched.
                os.utime(folder / each)
            return True
    return False


def _place_of(directory: str, key: str) -> tuple[Path, str]:
    digest = hashlib.blake2b(key.encode(), digest_size=20).hexdigest()
    return Path(directory, f"done-{digest[:2]}"), digest


def _end_of(mark: str) -> float:
    return float(mark.split("-")[1])
