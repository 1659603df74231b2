"""``file://``: one machine, any number of processes, nothing to install. The embedded default.

The leases are kept in record files (``records``) in a private directory (``directory``), and
processes wake one another, and notice one another's death, by Unix sockets (``processes``). The
time is the machine's monotonic clock, which all of them share.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from ..._core.ports import Ask, Grasp, Runtime, Store, Switchboard
from ..._core.table import Moment
from ...errors import ConfigurationError, EngineUnavailable
from ..cells import CellStore, Done, Transition
from ..url import shown
from .directory import Directory
from .processes import Processes, new_process
from .records import FILES, DirectoryGone, RecordFile, file_of

SCHEMES = ("file",)

PATIENCE: Final = 5.0
"""Seconds to wait for a record file, which is held for microseconds, before it counts as stuck."""

BEAT_PATIENCE: Final = 0.05
"""The same for heartbeats, so that one stuck file does not delay those in others."""

FIRST_PAUSE: Final = 0.00002
LONGEST_PAUSE: Final = 0.005
"""Seconds between attempts at a record file."""


def open_engine(url: str) -> FileEngine:
    """The engine of ``file:///absolute/directory``, or of ``file://``, which names a directory of
    this user's in ``/tmp``.
    """
    if sys.platform not in ("linux", "darwin"):
        raise ConfigurationError(
            f"file:// works on Linux and macOS, not on {sys.platform}: use redis:// for several"
            " processes, or memory:// for one"
        )
    path = url.partition("://")[2]
    if path[:1] not in ("", "/") or any(odd in path for odd in ("?", "#", "\0", "%00")):
        raise ConfigurationError(
            f"{shown(url)} names no directory: write file:///absolute/path, with three slashes, or"
            " file:// alone for the default"
        )
    return FileEngine(unquote(path) or default_directory())


def default_directory() -> str:
    """The same for all processes of one user, whatever their environment."""
    return f"/tmp/weblock-{os.geteuid()}"  # noqa: S108 - checked to be private before it is used


class FileEngine:
    """The leases of one directory, as this process sees them."""

    scope = "host"

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = f"file://{path}"
        self.switchboard = Switchboard()
        self.process = new_process()
        self._home: Home | None = None
        self._guard = threading.Lock()
        _engines.add(self)
        self.home()

    def connect(self, runtime: Runtime) -> Store:
        cells = _RecordCells(self, runtime)
        return CellStore(cells, _HomeBells(self), patience=PATIENCE, beat_patience=BEAT_PATIENCE)

    def home(self) -> Home:
        """What this process has open; it is opened when it is first needed, and after a fork."""
        return self._home or self._open()

    def close(self) -> None:
        with self._guard:
            home, self._home = self._home, None
        if home:
            home.close()

    def leave(self, home: Home) -> None:
        """Gives up a directory that has gone. Its leases went with it: the keeper will find out,
        and who waits asks again, in the new one.
        """
        with self._guard:
            if self._home is home:
                self._home = None
                home.close()
                self.switchboard.ring_all(Ask())

    def _open(self) -> Home:
        with self._guard:
            if self._home is None:
                self._home = Home(self)
            return self._home

    def _after_fork(self) -> None:
        self._guard = threading.Lock()
        self.process = new_process()
        self.switchboard.clear()
        home, self._home = self._home, None
        if home:
            home.abandon()


class Home:
    """What one process has open of a directory."""

    def __init__(self, engine: FileEngine) -> None:
        self.directory = Directory(engine.path, engine.name)
        with self.directory.claimed():
            self.processes = Processes(self.directory, engine.process, engine.switchboard)
        self.records = [RecordFile(self.directory, index) for index in range(FILES)]

    def close(self) -> None:
        self.processes.close()
        self._close_files()

    def abandon(self) -> None:
        self.processes.abandon()
        self._close_files()

    def _close_files(self) -> None:
        for record in self.records:
            record.close()
        self.directory.close()


class _RecordCells:
    """The record files as cells.

    A file is tried, and tried again after a moment, rather than waited for: in asyncio the loop
    goes on meanwhile, and in no runtime does a stopped process hang the others.
    """

    def __init__(self, engine: FileEngine, runtime: Runtime) -> None:
        self._engine = engine
        self._runtime = runtime

    async def update(self, key: str, transition: Transition, *, patience: float) -> Done:
        while True:
            home = self._engine.home()
            try:
                return await self._update_in(home, key, transition, patience)
            except DirectoryGone:
                self._engine.leave(home)

    async def _update_in(
        self, home: Home, key: str, transition: Transition, patience: float
    ) -> Done:
        record = home.records[file_of(key)]
        await self._lock(record, patience)
        try:
            now = self._runtime.now()
            moment = Moment(now, int(time.time() * 1_000_000), home.processes.alive)
            return Done(record.apply(key, transition, moment), now)
        except OSError as error:
            raise EngineUnavailable(self._engine.name, str(error)) from error
        finally:
            record.unlock()

    async def _lock(self, record: RecordFile, patience: float) -> None:
        if record.try_lock():
            return
        give_up_at = self._runtime.now() + patience
        pause = 0.0
        while not record.try_lock():
            if self._runtime.now() >= give_up_at:
                raise EngineUnavailable(self._engine.name, record.stuck_for(patience))
            await self._runtime.sleep(pause * (0.5 + self._runtime.jitter()))
            pause = min(LONGEST_PAUSE, 2 * pause + FIRST_PAUSE)


class _HomeBells:
    def __init__(self, engine: FileEngine) -> None:
        self._engine = engine

    @property
    def process(self) -> str:
        return self._engine.process

    def ring(self, process: str, owner: str, grasp: Grasp) -> None:
        self._engine.home().processes.ring(process, owner, grasp)

    def watch(self, processes: Sequence[str]) -> None:
        self._engine.home().processes.watch(processes)


_engines: weakref.WeakSet[FileEngine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in _engines:
        engine._after_fork()


os.register_at_fork(after_in_child=_after_fork)
