"""What happened inside a lock: written by many processes, checked by one sweep.

All processes of a machine share the clock, so the intervals can be compared as they are.
"""

from __future__ import annotations

import itertools
import os
import struct
from pathlib import Path
from typing import NamedTuple

_ENTRY = struct.Struct("<qdd")


class Section(NamedTuple):
    fence: int
    entered: float
    left: float


class Journal:
    """Where one process notes its sections. A note is one small write, so none is ever cut."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, fence: int, entered: float, left: float) -> None:
        os.write(self._fd, _ENTRY.pack(fence, entered, left))


class Counter:
    """A number in a file, which loses updates where two read it before either writes."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)

    def read(self) -> int:
        return int.from_bytes(os.pread(self._fd, 8, 0), "big")

    def write(self, value: int) -> None:
        os.pwrite(self._fd, value.to_bytes(8, "big"), 0)


def read_journals(folder: Path) -> list[Section]:
    """The sections of all processes, in the order in which they were entered."""
    sections: list[Section] = []
    for path in folder.glob("*.journal"):
        sections.extend(itertools.starmap(Section, _ENTRY.iter_unpack(path.read_bytes())))
    return sorted(sections, key=lambda section: section.entered)


def overlaps(sections: list[Section]) -> list[tuple[Section, Section]]:
    """The sections that began before the one before them had ended."""
    return [pair for pair in itertools.pairwise(sections) if pair[1].entered < pair[0].left]


def fences_out_of_order(sections: list[Section]) -> list[tuple[Section, Section]]:
    """The sections whose fence is not above that of the one before them."""
    return [pair for pair in itertools.pairwise(sections) if pair[1].fence <= pair[0].fence]
