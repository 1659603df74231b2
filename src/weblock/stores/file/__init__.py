"""``file://``: one machine, any number of processes, nothing to install. The embedded default.

The engine is made of these chapters:

- ``directory``: where the leases are, and which directories are rejected.
- ``records``: the files with the states of the keys, and the lock of each file.
- ``processes``: how processes wake one another, and notice the death of another.
- ``marks``: what is recorded as done.
- ``checks``: what an operator should know of the directory.

A process opens a directory when it first locks something, and keeps it open (``Home``). An operation
tries to get into the record file of its key. A record file is tried, and tried again after a moment,
rather than waited for: in asyncio the loop goes on meanwhile, and no caller hangs because a process
inside was stopped: after a few seconds it gets an error. The time is the machine's monotonic clock, which
all processes share.

If the directory is deleted or moved away, its leases are gone. A process finds that out with its next
operation, and goes on in the directory that its path names then, under another name: see ``leave``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn, TypeVar
from urllib.parse import unquote

from ..._core.ports import Ask, Engine, Grasp, Runtime, Store
from ..._platform.forks import heed_forks
from ..._platform.logs import logger
from ...errors import ConfigurationError, EngineUnavailable
from ..cells import CellStore, Done, Transition
from ..findings import Finding, Level
from ..transport.backoff import spread
from ..transport.options import flag, options_in
from ..url import shown
from . import checks
from .directory import Directory, lacks_descriptors
from .marks import Marks
from .processes import Processes, Waiters
from .records import FILES, Changes, DirectoryGone, RecordFile, Visit, file_of

T = TypeVar("T")

PATIENCE: Final = 5.0
"""Seconds to wait for a record file, which is held for microseconds, before it counts as stuck."""

BEAT_PATIENCE: Final = 0.2
"""Patience of a keeper's requests, so that one stuck file does not delay heartbeats in others."""

CHECK_EVERY: Final = 1.0
"""Seconds between checks whether another machine uses the directory."""

FRESHEN_EVERY: Final = 600.0
"""Seconds between touches of its files, so that cleaners of temporary files spare them."""

FIRST_PAUSE: Final = 0.00002
LONGEST_PAUSE: Final = 0.25
"""Seconds between attempts at a record file.

They grow with the time that a caller has waited. Each attempt takes time of a processor, which in a
crowd the process inside the file is waiting for: too many attempts, and it never comes out.
"""

CROWDED: Final = 6
"""How many times its patience a caller waits for a file that many processes go in and out of."""

MARK_PAUSE: Final = 0.002
"""Seconds between attempts to record a mark while marks that have ended are removed."""

PAUSE_SHARE: Final = 0.25
"""The pause of a lone waiter, as a share of the time that it has waited."""


def open_engine(url: str) -> FileEngine:
    """Return the engine of ``file:///absolute/directory``.

    ``file://`` alone names a directory of this user's in ``/tmp``. Where others may have a directory
    of the same name, that is logged as a warning; ``?allow_container=true`` says that none does.
    """
    has_files = sys.platform in ("linux", "darwin") and find_spec("fcntl") is not None
    if not has_files or not hasattr(socket, "AF_UNIX"):
        raise ConfigurationError(
            f"file://, the default engine, needs the file locks and Unix sockets of Linux or macOS,"
            f" which Python does not have on this machine ({sys.platform}): use redis://host for"
            f" several processes, or memory:// for one"
        )
    directory, options = _parsed(url)
    engine = FileEngine(directory)
    engine.alone = options.get("allow_container", False)
    found = checks.container(engine.path, named=bool(directory), alone=engine.alone)
    if found.level is not Level.OK and not checks.told:
        checks.told.append(found.text)
        logger.warning("%s %s", found.text, found.remedy)
    return engine


def _parsed(url: str) -> tuple[str, dict[str, bool]]:
    """Return the directory that a URL names, empty for the default, and its options."""
    path, _, query = url.partition("://")[2].partition("?")
    # Without its last slash: one would have a symbolic link followed.
    directory = unquote(path).rstrip("/")
    named = directory[:1] == "/" or not path
    if not named or any(odd in path for odd in ("#", "\0", "%00")):
        raise ConfigurationError(
            f"{shown(url)} names no directory: write file:///absolute/path, with three slashes, or"
            " file:// alone for the default"
        )
    return directory, options_in(query, {"allow_container": flag}, engine="file://")


def default_directory() -> str:
    """Return the same directory for all processes of one user, whatever their environment."""
    return f"/tmp/weblock-{os.geteuid()}"  # noqa: S108 - checked to be private before it is used


class FileEngine(Engine):
    """The leases of one directory, as this process sees them. It is also the bells of ``CellStore``."""

    scope = "host"

    def __init__(self, directory: str) -> None:
        self._directory = directory
        """The directory that the URL names; empty for the default."""
        self._find_directory()
        self.other_paths: list[str] = []
        self.alone = False
        """Whether the URL says that no other container locks elsewhere."""
        self._closed = False
        self.after_fork()
        heed_forks(self)
        self._open()

    def after_fork(self) -> None:
        """Begin with nothing open, as a process that had no name before."""
        self.switchboard: Waiters = Waiters()
        self.process = secrets.token_hex(8)
        self.home: Home | None = None
        self._opening = threading.RLock()
        self._opens = False
        """Whether the thread that has the mutex is opening the directory."""

    def connect(self, runtime: Runtime) -> Store:
        cells = _RecordCells(self, runtime)
        return CellStore(cells, self, patience=PATIENCE, beat_patience=BEAT_PATIENCE)

    def ring(self, process: str, owner: str, grasp: Grasp) -> None:
        if home := self.home:
            home.processes.ring(process, owner, grasp)

    def watch(self, key: str, owner: str, ahead: Sequence[str], *, first: bool) -> None:
        if home := self.home:
            home.processes.watch(owner, ahead, first=first)

    def close_up(self, process: str, owner: str) -> None:
        if home := self.home:
            home.processes.close_up(process, owner)

    def home_at(self, now: float) -> Home:
        """What this process has open; it is opened when it is first needed, and after a fork.

        What is due there from time to time is seen to. Raises ``EngineUnavailable``.
        """
        try:
            home = self.home or self._open()
            if now >= home.check_at:
                # As long as our first path names the directory, it is not left: leases in it would be
                # void, and their holders would not know. The other paths may come back.
                if home.directory.deleted:
                    self.leave(home)
                    home = self._open()
                home.directory.check_names(self.other_paths)
                home.tend(now)
        except (ConfigurationError, OSError) as error:
            self.fail(error)
        return home

    def fail(self, error: Exception) -> NoReturn:
        """Raise ``EngineUnavailable`` for an error of the files here, with the remedy."""
        if isinstance(error, EngineUnavailable):
            raise error
        reason = str(error)
        if isinstance(error, OSError) and error.errno == errno.ENFILE:
            reason = (
                "this machine has as many files open as it can (ENFILE): raise fs.file-max, or look"
                " for the process that opens so many"
            )
        elif lacks_descriptors(error):
            reason = (
                f"process {os.getpid()} has as many files open as it may (EMFILE): raise its limit"
                " (ulimit -n, or LimitNOFILE= of systemd), or look for what it never closes (lsof -p)"
            )
        raise EngineUnavailable(self.name, reason) from error

    def serves(self, url: str) -> bool:
        """Return whether ``url`` names our directory by another path, which must keep doing so."""
        if not url.lower().startswith("file://"):
            return False
        path, home = _parsed(url)[0] or default_directory(), self.home
        if home is None or not home.directory.is_at(path):
            return False
        if path != self.path and path not in self.other_paths:
            self.other_paths.append(path)
        return True

    def diagnose(self) -> Iterable[Finding]:
        """Return what there is to know of the directory."""
        return checks.findings(self.path, named=bool(self._directory), alone=self.alone)

    def close(self) -> None:
        """Close the engine. Callers that still wait here are notified."""
        with self._opening:
            self._closed = True
            home, self.home = self.home, None
        if home:
            home.close()
        self.switchboard.ring_all(Ask())

    def leave(self, home: Home) -> None:
        """Leave a directory that was deleted.

        Its leases are gone: the keeper will find out. Waiters ask again, in the new directory, and under
        another name: should the directory come back, other processes take us for dead under this one.
        """
        with self._opening:
            if self.home is not home:
                return
            self.home, self.process = None, secrets.token_hex(8)
        home.close()
        self.switchboard.ring_all(Ask())

    def _open(self) -> Home:
        with self._opening:
            if self._closed:
                raise ConfigurationError(f"{self.name} has been closed")
            if self._opens:  # A signal handler has interrupted this thread below.
                raise EngineUnavailable(self.name, "its own thread is opening it")
            if self.home is None:
                self._find_directory()  # A forked child may run as another user by now.
                try:
                    self._opens = True
                    self.home = Home(self)
                except OSError as error:
                    self.fail(error)
                finally:
                    self._opens = False
            return self.home

    def _find_directory(self) -> None:
        self.path = self._directory or default_directory()
        self.name = f"file://{self.path}"


class Home:
    """What one process has open of a directory."""

    def __init__(self, engine: FileEngine) -> None:
        with contextlib.ExitStack() as undo:
            self.directory = Directory(engine.path, engine.name)
            undo.callback(self.directory.close)
            self.directory.check_names(engine.other_paths)
            self.processes = Processes(self.directory, engine.process, engine.switchboard)
            undo.callback(self.processes.close)
            self.directory.check_machine(moving_in=True)
            undo.pop_all()
        self.marks = Marks(self.directory)
        self.records = [RecordFile(self.directory, index) for index in range(FILES)]
        self.check_at = 0.0
        self._freshen_at = 0.0

    def tend(self, now: float) -> None:
        """Do what is due from time to time. A held lease does not depend on it."""
        self.check_at = now + CHECK_EVERY
        self.put_away(only_if_idle=True)
        try:
            self.directory.check_machine()
            if now >= self._freshen_at:
                self.processes.freshen()
                self.directory.freshen()
                self._freshen_at = now + FRESHEN_EVERY
        except OSError as error:
            if not lacks_descriptors(error):
                self.check_at = now  # What is wrong is said until it is not wrong any more.
                raise

    def put_away(self, *, only_if_idle: bool) -> bool:
        """Close record files without leases of ours, and return whether there was one."""
        process = self.processes.process
        closed = [each.put_away(process, only_if_idle=only_if_idle) for each in self.records]
        return any(closed)

    def close(self) -> None:
        # The records first: as soon as our sockets are closed, our leases are void.
        for record in self.records:
            record.close()
        self.processes.close()
        self.directory.close()


class _RecordCells:
    """The record files as cells."""

    def __init__(self, engine: FileEngine, runtime: Runtime) -> None:
        self._engine = engine
        self._runtime = runtime

    async def update(self, key: str, transition: Transition, *, patience: float) -> Done:
        visit = await self._visit(file_of(key), ((key, transition),), patience)
        return Done(visit.steps[0], visit.now)

    async def update_many(
        self, changes: Mapping[str, Transition], *, patience: float
    ) -> dict[str, Done | EngineUnavailable]:
        """Lock each file once: where threads compete, locking takes most of the time."""
        by_file: dict[int, list[tuple[str, Transition]]] = {}
        for change in changes.items():
            by_file.setdefault(file_of(change[0]), []).append(change)
        outcomes: dict[str, Done | EngineUnavailable] = {}
        for file, of_file in by_file.items():
            keys = [key for key, _ in of_file]
            try:
                steps, now, _ = await self._visit(file, of_file, patience)
            except EngineUnavailable as error:
                outcomes |= dict.fromkeys(keys, error)
            else:
                outcomes |= {key: Done(step, now) for key, step in zip(keys, steps, strict=True)}
        return outcomes

    async def names(self, prefix: str, *, patience: float) -> list[str]:
        names: list[str] = []
        for file in range(FILES):
            home = self._engine.home_at(self._runtime.now())
            if home.records[file].written_at:  # To look is no reason to make one.
                visit = await self._visit(file, (), patience)
                names += [name.decode() for name in tuple(visit.lines)]
        return [name for name in names if name.startswith(prefix)]

    async def mark(self, key: str, keep: float | None) -> None:
        until = self._runtime.now() + PATIENCE
        while not self._in_directory(lambda home: home.marks.put(key, keep)):
            if self._runtime.now() >= until:
                raise EngineUnavailable(
                    self._engine.name, "a process that removes there what has ended has stopped"
                )
            await self._runtime.sleep(MARK_PAUSE * (0.5 + self._runtime.jitter()))
        self._in_directory(lambda home: home.marks.remove_ended(self._runtime.now()))

    async def marked(self, key: str) -> bool:
        return self._in_directory(lambda home: home.marks.has(key))

    def _in_directory(self, work: Callable[[Home], T]) -> T:
        """Run a function on what is open of a directory that still exists."""
        while True:
            home = self._engine.home_at(self._runtime.now())
            try:
                if not home.directory.deleted:
                    return work(home)
            except (ConfigurationError, OSError) as error:
                if not (lacks_descriptors(error) and home.put_away(only_if_idle=False)):
                    self._engine.fail(error)
                continue
            self._engine.leave(home)

    async def _visit(self, file: int, changes: Changes, patience: float) -> Visit:
        """Apply changes to a record file as soon as no other caller is inside."""
        clock = self._runtime.now
        while True:
            home = self._engine.home_at(clock())
            record, alive = home.records[file], home.processes.alive
            try:
                done = record.run(changes, clock, alive)
                return done or await self._visit_later(record, changes, alive, patience)
            except DirectoryGone:
                self._engine.leave(home)
            except (ConfigurationError, OSError) as error:
                if not (lacks_descriptors(error) and home.put_away(only_if_idle=False)):
                    self._engine.fail(error)

    async def _visit_later(
        self, record: RecordFile, changes: Changes, alive: Callable[[str], bool], patience: float
    ) -> Visit:
        """Try again and again to get into a file that is busy. Raises ``EngineUnavailable``."""
        clock, path = self._runtime.now, record.path
        began = moved = clock()
        pause, written = 0.0, record.written_at
        record.waiting += 1
        try:
            while not (done := record.run(changes, clock, alive)):
                now = clock()
                if written != (written := record.written_at):
                    moved = now
                if now - moved >= patience:
                    # A heartbeat does not ask: see _process_inside.
                    holder = _process_inside(path) if patience > BEAT_PATIENCE else ""
                    raise EngineUnavailable(
                        self._engine.name,
                        f"{f'process {holder}' if holder else 'a process'} has been inside {path} for"
                        f" {patience:.2g} s, where it should be for microseconds; it may be stopped"
                        " (SIGSTOP, a debugger): continue or kill it",
                    )
                if now - began >= CROWDED * patience:
                    raise EngineUnavailable(
                        self._engine.name,
                        f"{path} was busy for {CROWDED * patience:.2g} s, though no process stays in"
                        " it: so many processes and threads lock here that this machine is too slow"
                        " for them; start fewer at once, or use redis://",
                    )
                await self._runtime.sleep(spread(pause, self._runtime.jitter))
                longest = PAUSE_SHARE * (now - began) * record.waiting
                pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, min(longest, 2 * pause)))
            return done
        finally:
            record.waiting -= 1


def _process_inside(path: str) -> str:
    """Return the process that has locked a file, on Linux; empty if unknown.

    While the kernel lists its locks, no process of the machine can lock a file: a crowd that asks
    often is slowed down by its own questions.
    """
    with contextlib.suppress(OSError):
        inode = os.stat(path).st_ino
        for line in Path("/proc/locks").read_text("ascii").splitlines():
            fields = line.split()
            if "FLOCK" in fields and "->" not in fields and fields[5].endswith(f":{inode}"):
                return fields[4]
    return ""
