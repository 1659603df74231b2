"""``file://``: one machine, any number of processes, nothing to install. The embedded default.

- ``directory``: where the leases are, and which directories are rejected.
- ``records``: the files with the states of the keys, and the lock of each file.
- ``texts``: the files with texts that are kept under a lease.
- ``processes``: how processes wake one another, and notice the death of another.
- ``checks``: what an operator should know of the directory.

A process opens a directory when it first locks something, and keeps it open (``OpenDirectory``). An operation
tries to get into the record file of its key. A record file is tried, and tried again after a moment,
rather than waited for: in asyncio the loop goes on meanwhile, and no caller hangs because a process
inside was stopped. The time is the machine's monotonic clock, which all processes share.

If the directory is deleted or moved away, its leases are gone. A process finds that out with its next
operation, and goes on in the directory that its path names then, under another name: see ``leave``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn, TypeVar
from urllib.parse import unquote

from ..._core.ports import CheckAgain, Engine, Granted, Runtime, Store, Switchboard
from ..._platform.forks import reset_after_fork
from ..._platform.logs import logger
from ..._platform.threads import in_thread
from ...errors import ConfigurationError, EngineUnavailable
from .. import marks
from ..cells import CellStore, Done, Transition
from ..findings import Finding, Level
from ..transport.failures import spread
from ..transport.settings import flag, options_in
from ..url import shown
from . import checks
from .directory import Directory, lacks_descriptors
from .processes import Processes
from .records import FILES, Changes, RecordFile, Visit, file_of
from .texts import FileTexts, sync

R = TypeVar("R")

THREADS: Final = 8
"""How many texts are written at the same time, which takes as long as the disk."""

PATIENCE: Final = 5.0
"""Seconds to wait for a record file, which is held for microseconds, before it counts as stuck."""

BEAT_PATIENCE: Final = 0.2
"""Patience of a keeper's requests, so that one stuck file does not delay heartbeats in others."""

CROWDED: Final = 6
"""How many times its patience a caller waits for a file that many processes go in and out of."""

FIRST_PAUSE: Final = 0.00002
LONGEST_PAUSE: Final = 0.25
PAUSE_SHARE: Final = 0.25
"""Seconds between attempts at a record file, and their share of the time that a lone caller has waited.

Each attempt takes time of a processor, which in a crowd the process inside the file is waiting for: too
many attempts, and it never comes out.
"""


def open_engine(url: str) -> FileEngine:
    """Return the engine of ``file:///absolute/directory``.

    ``file://`` alone names a directory of this user's in ``/tmp``. Where others may have a directory
    of the same name, the first process that opens it logs a warning; ``?allow_container=true`` says
    that none does.
    """
    if sys.platform != "linux" or find_spec("fcntl") is None:
        raise ConfigurationError(
            f"file://, the default engine, needs the file locks and named pipes of Linux, which"
            f" Python does not have on this machine ({sys.platform}): use redis://host for several"
            f" processes, or memory:// for one"
        )
    directory, options = _parsed(url)
    alone = options.get("allow_container", False)
    engine = FileEngine(directory, alone=alone)
    found = checks.container(engine.path, f"file://{directory}", alone=alone)
    home = engine.home  # If it is not new, a worker would only repeat the warning.
    if found.level is not Level.OK and home and home.directory.is_new and not checks.told:
        checks.told.append(found.text)
        logger.warning("%s %s [weblock.container]", found.text, found.remedy)
    return engine


def _parsed(url: str) -> tuple[str, dict[str, bool]]:
    """Return the directory that a URL names, empty for the default, and its options."""
    path, _, query = url.partition("://")[2].partition("?")
    named = unquote(path)
    # One path for each spelling. With a slash at its end, a symbolic link would be followed.
    directory = "".join(f"/{part}" for part in named.split("/") if part not in ("", "."))
    if (named and not (named[0] == "/" and directory)) or "#" in path or "\0" in named:
        raise ConfigurationError(
            f"{shown(url)} names no directory: write file:///absolute/path, with three slashes, or"
            " file:// alone for the default"
        )
    return directory, options_in(query, {"allow_container": flag}, engine="file://")


def default_directory() -> str:
    """Return the same directory for all processes of one user, whatever their environment."""
    return f"/tmp/weblock-{os.geteuid()}"  # noqa: S108 - checked to be private before it is used


class FileEngine(Engine):
    """The leases of one directory, as this process sees them. It is also the notifier of ``CellStore``."""

    scope = "host"
    fails_as_one = False  # A process that was stopped holds up only the keys of one file.

    def __init__(self, directory: str, *, alone: bool = False) -> None:
        """Open a directory; ``alone`` as in ``checks``."""
        self._directory = directory  # Empty for the default.
        self._alone = alone
        self._closed = False
        self.after_fork()
        reset_after_fork(self)
        self._open()

    def after_fork(self) -> None:
        """Begin with nothing open, as a process that had no name before."""
        self.switchboard = Switchboard()
        self.process = secrets.token_hex(8)
        self.home: OpenDirectory | None = None
        self.threads = ThreadPoolExecutor(THREADS, "weblock-texts")
        """Those that write texts for event loops. None is started before."""
        self._opening = threading.RLock()
        self._opens = False
        """Whether the thread that has the mutex is opening the directory."""

    def connect(self, runtime: Runtime) -> Store:
        cells = _RecordCells(self, runtime)
        texts = FileTexts(partial(cells.update, patience=PATIENCE), cells.run)
        return CellStore(cells, self, patience=PATIENCE, beat_patience=BEAT_PATIENCE, texts=texts)

    def notify(self, process: str, owner: str, granted: Granted) -> None:
        if home := self.home:
            home.processes.notify(process, owner, granted)

    def watch(self, key: str, owner: str, ahead: Iterable[str], *, first: bool) -> None:
        if home := self.home:
            home.processes.watch(owner, ahead, first=first)

    def close_up(self, process: str, owner: str) -> None:
        if home := self.home:
            home.processes.close_up(process, owner)

    def open(self) -> OpenDirectory:
        """Return what this process has open, or open it. Raises ``EngineUnavailable``."""
        try:
            return self.home or self._open()
        except (ConfigurationError, OSError) as error:
            self.fail(error)

    def fail(self, error: Exception) -> NoReturn:
        """Raise ``EngineUnavailable`` for an error of the files here, with the remedy."""
        if isinstance(error, EngineUnavailable):
            raise error
        reason = error.message if isinstance(error, ConfigurationError) else str(error)
        if lacks_descriptors(error):
            reason = (
                f"process {os.getpid()} has as many files open as it may (EMFILE): raise its limit"
                " (ulimit -n, or LimitNOFILE= of systemd; for ENFILE, fs.file-max), or look for what it"
                " never closes (lsof -p)"
            )
        raise EngineUnavailable(self.name, reason) from error

    def serves(self, url: str) -> bool:
        """Return whether ``url`` names our directory.

        Raises ``ConfigurationError`` for another path of it: with two engines in one directory, a
        process could not see that it waits for itself, and the two paths could part.
        """
        if not url.lower().startswith("file://"):
            return False
        path = _parsed(url)[0] or default_directory()
        if path != self.path and self.home and self.home.directory.is_at(path):
            raise ConfigurationError(
                f"{path} and {self.path} are the same directory: use one path in this process"
            )
        return path == self.path

    def diagnose(self) -> Iterable[Finding]:
        """Return what there is to know of the directory."""
        return checks.findings(self.path, f"file://{self._directory}", alone=self._alone)

    def close(self) -> None:
        """Close the engine. Callers that still wait here are notified."""
        with self._opening:
            self._closed = True
        self.threads.shutdown(wait=False)
        self.leave(self.home)

    def leave(self, home: OpenDirectory | None) -> None:
        """Leave a directory that was deleted, or is not needed any more.

        Its leases are gone: the keeper will find out. Waiters ask again, in the new directory, and under
        another name: should the directory come back, other processes take us for dead under this one.
        """
        with self._opening:
            if self.home is not home:
                return
            self.home, self.process = None, secrets.token_hex(8)
        if home:
            home.close()
        self.switchboard.notify_all(CheckAgain())

    def _open(self) -> OpenDirectory:
        with self._opening:
            if self._closed:
                raise ConfigurationError(f"{self.name} is closed", code="closed")
            if self._opens:  # A signal handler has interrupted this thread below.
                raise EngineUnavailable(self.name, "this thread is already opening it")
            try:
                self._opens = True
                if self.home is None:
                    # A forked child may run as another user by now.
                    self.path = self._directory or default_directory()
                    self.name = f"file://{self.path}"
                    self.home = OpenDirectory(self)
            except OSError as error:
                self.fail(error)
            finally:
                self._opens = False
            return self.home


class OpenDirectory:
    """What a process has open of a directory."""

    def __init__(self, engine: FileEngine) -> None:
        self.directory = Directory(engine.path, engine.name)
        try:
            self.directory.check_version()
            self.records = [RecordFile(self.directory, index) for index in range(FILES)]
            self.processes = Processes(self.directory, engine.process, engine.switchboard)
        except BaseException:
            self.directory.close()
            raise

    def close(self) -> None:
        # The records first: as soon as our pipe is closed, our leases are void.
        for record in self.records:
            record.close()
        self.processes.close()
        self.directory.close()


def _folder_of(directory: str, key: str) -> Path:
    """Return the folder of a key's marks: empty files, which a reboot and a crash leave as they are."""
    return Path(directory, f"done-{marks.hash_of(key)[:2]}")


class _RecordCells:
    """The record files as cells."""

    def __init__(self, engine: FileEngine, runtime: Runtime) -> None:
        self._engine = engine
        self._runtime = runtime

    async def update(self, key: str, transition: Transition, *, patience: float) -> Done:
        (done,), _ = await self._visit(file_of(key), ((key, transition),), patience)
        return done

    async def update_many(
        self, changes: Mapping[str, Transition], *, patience: float
    ) -> dict[str, Done | EngineUnavailable]:
        """Lock each file once: where threads compete, locking takes most of the time."""
        by_file: dict[int, list[tuple[str, Transition]]] = {}
        for change in changes.items():
            by_file.setdefault(file_of(change[0]), []).append(change)
        outcomes: dict[str, Done | EngineUnavailable] = {}
        for file, of_file in by_file.items():
            try:
                done, _ = await self._visit(file, of_file, patience)
                outcomes |= {key: each for (key, _), each in zip(of_file, done, strict=True)}
            except EngineUnavailable as error:
                outcomes |= {key: error for key, _ in of_file}
        return outcomes

    async def names(self, prefix: str, *, patience: float) -> list[str]:
        names: list[str] = []
        for file in range(FILES):
            if self._engine.open().records[file].written_at:  # To look is no reason to make one.
                _, states = await self._visit(file, (), patience)
                names += [name.decode() for name in list(states)]
        return [name for name in names if name.startswith(prefix)]

    async def mark(self, key: str, keep: float | None) -> None:
        try:
            directory = self._directory()
            folder = _folder_of(directory, key)
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700)  # Whatever the umask is.
            former, now = os.listdir(folder), time.time()
            if keep != 0:
                (folder / marks.new_name(key, keep, now)).touch(0o600)
            for each in marks.replaced(former, key, now):
                (folder / each).unlink(missing_ok=True)
            sync(folder)
            sync(directory)
        except OSError as error:
            self._engine.fail(error)

    async def marked(self, key: str) -> bool:
        try:
            folder = _folder_of(self._directory(), key)
            end, mark = marks.last_of(os.listdir(folder), key)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._engine.fail(error)
        if end <= time.time():
            return False
        # Programs that clean /tmp spare what was just touched.
        with contextlib.suppress(OSError):
            os.utime(folder / mark)
        return True

    def _directory(self) -> str:
        """Return the path of our directory. Where it names another one by now, that is opened first."""
        home = self._engine.open()
        if not home.directory.is_at(home.directory.path):
            self._engine.leave(home)
            home = self._engine.open()
        return home.directory.path

    async def run(self, work: Callable[[Path], R]) -> R:
        """Return what ``work`` returns for our directory.

        An event loop has it done in a thread of ours: what occupies the loop's own threads may wait for the
        caller.
        """
        try:
            working = partial(work, Path(self._directory()))
            threads = self._engine.threads
            return await in_thread(threads, working) if self._runtime.suspends else working()
        except (OSError, RuntimeError) as error:  # No thread could be started.
            self._engine.fail(error)

    async def _visit(self, file: int, changes: Changes, patience: float) -> Visit:
        """Apply changes to a record file as soon as no other caller is inside."""
        clock = self._runtime.now
        while True:
            home = self._engine.home or self._engine.open()
            record, alive = home.records[file], home.processes.alive
            try:
                done = record.run(changes, clock, alive)
                return done or await self._visit_later(record, changes, alive, patience)
            except FileNotFoundError:
                self._engine.leave(home)
            except (ConfigurationError, OSError) as error:
                self._engine.fail(error)

    async def _visit_later(
        self, record: RecordFile, changes: Changes, alive: Callable[[str], bool], patience: float
    ) -> Visit:
        """Try again and again to get into a file that is busy. Raises ``EngineUnavailable``."""
        clock = self._runtime.now
        began = moved = clock()
        pause, written = 0.0, record.written_at
        record.waiting += 1
        try:
            while not (done := record.run(changes, clock, alive)):
                now = clock()
                if written != (written := record.written_at):
                    moved = now
                if now - moved >= patience:
                    raise EngineUnavailable(
                        self._engine.name,
                        f"a process has been inside {record.path} for {patience:.2g} s, where it should be"
                        " for microseconds; it might be stopped (SIGSTOP, a debugger): find it with lslocks,"
                        " and continue or kill it",
                    )
                if now - began >= CROWDED * patience:
                    raise EngineUnavailable(
                        self._engine.name,
                        f"{record.path} was busy for {CROWDED * patience:.2g} s, though no process stays in"
                        " it: this machine is too slow for this many processes; start fewer at once, or use redis://",
                    )
                await self._runtime.sleep(spread(pause, self._runtime.jitter))
                longest = PAUSE_SHARE * (now - began) * record.waiting
                pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, min(longest, 2 * pause)))
            return done
        finally:
            record.waiting -= 1
