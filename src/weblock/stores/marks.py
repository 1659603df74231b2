"""Marks of what has been done, as names: for engines that keep files or nodes in folders.

The name of a mark is ``HASH-END-RANDOM``: the hash of its key, when it ends, and what no other mark
has. A mark is written in two steps:

1. The process reads the names in the folder of the key, which some other keys share.
2. It adds the new mark, then removes what the new one replaces: those marks of the key that it has
   read, and any that have ended.

No lock is needed. A name is there as a whole or not at all, and is never used again. So a process
removes no mark that was written after it has read: of two that mark a key at once, both marks stay.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Iterable


def hash_of(key: str) -> str:
    """Return what the names of a key's marks begin with. The first digits name their folder."""
    return hashlib.blake2b(key.encode(), digest_size=20).hexdigest()


def new_name(key: str, keep: float | None, now: float) -> str:
    """Return the name of a mark that ends ``keep`` seconds from now, or never with ``None``."""
    end = math.inf if keep is None else now + keep
    return f"{hash_of(key)}-{end}-{secrets.token_hex(4)}"


def replaced(names: Iterable[str], key: str, now: float) -> list[str]:
    """Return the marks that a new one of the key replaces, and those of other keys that have ended."""
    return [each for each in names if each.startswith(hash_of(key)) or end_of(each) <= now]


def last_of(names: Iterable[str], key: str) -> tuple[float, str]:
    """Return when the last mark of a key ends, and its name; 0 without a mark."""
    ours = (each for each in names if each.startswith(hash_of(key)))
    return max(((end_of(each), each) for each in ours), default=(0.0, ""))


def end_of(name: str) -> float:
    """Return when a mark ends."""
    return float(name.split("-")[1])
