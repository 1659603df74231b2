"""Which key is kept in which record file."""

from __future__ import annotations

import itertools
from pathlib import Path

from weblock.keys import qualified
from weblock.stores.file.records import file_of


def record_of(folder: Path, key: str) -> Path:
    return folder / f"records-{file_of(qualified('default', key)):02d}"


def keys_in(record: Path, count: int) -> list[str]:
    folder = record.parent
    found = (f"key {n}" for n in itertools.count() if record_of(folder, f"key {n}") == record)
    return list(itertools.islice(found, count))


def key_outside(record: Path) -> str:
    folder = record.parent
    return next(f"key {n}" for n in itertools.count() if record_of(folder, f"key {n}") != record)
