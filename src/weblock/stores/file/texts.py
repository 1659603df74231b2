"""Texts beside the leases of a directory: a folder for each group, and a file for each text.

The name of a file is that of a mark (see ``marks``): the hash of its key, when it ends, and what no other file
has. The file contains the key, an end of line, and the text. A caller that keeps a text takes these steps:

1. It writes the text to a file whose name is that of no key.
2. It renames the file while it is inside the record file of its key, and only if it has the lease. No
   other caller can get the lease meanwhile.
3. It removes what the text replaces, and what has ended in the folder; now and then in all folders.

A file that was not renamed, because its process was killed, is removed like a text that has ended.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from ..._core.ports import Found, Texts
from .. import marks
from ..cells import WhileHeld

R = TypeVar("R")

SWEEPS: Final = 1 / 100
"""The share of texts with which what has ended in other folders is removed, too."""

UNFINISHED: Final = "", 60.0
"""The key of a file that was not renamed yet, and in how many seconds it ends."""


class FileTexts(Texts):
    """The texts of a directory.

    ``inside`` calls a transition inside the record file of a key. ``run`` calls a function with the path
    of the directory, where it may take time.
    """

    def __init__(
        self,
        inside: Callable[[str, WhileHeld], Awaitable[object]],
        run: Callable[[Callable[[Path], Any]], Awaitable[Any]],
    ) -> None:
        self._inside = inside
        self._run = run

    async def find(self, key: str, group: str) -> Found:
        found: Found = await self._run(partial(_find, key, group))
        return found

    async def keep(self, key: str, group: str, text: str, *, owner: str, seconds: float) -> bool:
        written: Path = await self._run(partial(_write, group, f"{key}\n{text}"))
        final = written.with_name(marks.new_name(key, seconds, time.time()))
        await self._inside(key, WhileHeld(owner, partial(_rename, written, final)))
        kept: bool = await self._run(partial(_finish, written, final))
        return kept

    async def forget(self, key: str, group: str) -> bool:
        forgotten: bool = await self._run(partial(_forget, key, group))
        return forgotten

    async def all(self, prefix: str, limit: int) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = await self._run(partial(_all, prefix, limit))
        return found


def sync(place: Path | str) -> None:
    """Write a folder, or what was renamed in it, to the disk."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _live(folder: Path) -> list[str]:
    """Return the names of the texts in a folder that have not ended."""
    now = time.time()
    with suppress(FileNotFoundError):
        unfinished = marks.hash_of(UNFINISHED[0])
        names = (each for each in os.listdir(folder) if not each.startswith(unfinished))
        return [each for each in names if marks.end_of(each) > now]
    return []


def _find(key: str, group: str, directory: Path) -> Found:
    folder = directory / "texts" / group
    names, text = _live(folder), None
    _, name = marks.last_of(names, key)
    if name:
        with suppress(FileNotFoundError):  # It has ended just now.
            text = (folder / name).read_text().partition("\n")[2]
            os.utime(folder / name)  # Programs that clean /tmp spare what was just touched.
    now = time.time()
    return Found(text, len(names), max(0.0, min(map(marks.end_of, names), default=now) - now))


def _write(group: str, content: str, directory: Path) -> Path:
    folder = directory / "texts" / group
    for each in (folder.parent, folder):
        if not each.exists():
            each.mkdir(exist_ok=True)
            each.chmod(0o700)  # Whatever the umask is.
            sync(each.parent)
    path = folder / marks.new_name(*UNFINISHED, time.time())
    with path.open("x") as file:
        path.chmod(0o600)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return path


def _rename(written: Path, final: Path) -> None:
    with suppress(FileNotFoundError):  # The directory was removed: then ``_finish`` finds nothing.
        written.rename(final)


def _finish(written: Path, final: Path, _directory: Path) -> bool:
    """Remove what a text replaces, and what has ended; return whether the text is there."""
    folder, hashed = final.parent, final.name.partition("-")[0]
    written.unlink(missing_ok=True)
    if is_kept := final.exists():
        former = [each for each in _live(folder) if each.startswith(hashed) and each != final.name]
        for each in former:
            (folder / each).unlink(missing_ok=True)
        sync(folder)
    folders = folder.parent.iterdir() if random.random() < SWEEPS else (folder,)
    for some in folders:
        now = time.time()
        with suppress(OSError):  # Another process has removed it, or something is left in it.
            for name in os.listdir(some):
                if marks.end_of(name) <= now:
                    (some / name).unlink(missing_ok=True)
            some.rmdir()
    return is_kept


def _forget(key: str, group: str, directory: Path) -> bool:
    folder = directory / "texts" / group
    names = [each for each in _live(folder) if each.startswith(marks.hash_of(key))]
    for each in names:
        (folder / each).unlink(missing_ok=True)
    return bool(names)


def _all(prefix: str, limit: int, directory: Path) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for folder in (directory / "texts").glob("*"):
        for name in _live(folder):
            with suppress(FileNotFoundError):
                key, _, text = (folder / name).read_text().partition("\n")
                if key.startswith(prefix):
                    found.append((key, text))
            if len(found) >= limit:
                return found
    return found
