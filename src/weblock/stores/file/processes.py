"""The processes that lock in one directory: how they wake one another, and notice a death.

Each process has a named pipe in the directory, which only this process reads. A line that another one
writes into it tells a waiter that it has the lease, or makes it ask the engine.

A waiter's process keeps the pipe of another one open. When that one dies, however it dies, the kernel tells
all that have its pipe open. From then on it cannot be opened any more (``ENXIO``). So a death is noticed at
once, and not guessed from process ids, which are used again, and differ between containers.

The waiters of a key are a chain: each watches the nearest process before it that lives, and the first
one watches all holders. A death wakes only the waiters directly behind it; each of them asks the
engine, and finds another process to watch. A waiter that leaves the queue notifies the one behind it,
which would otherwise go on watching a process that is not before it any more. If each waiter watched
all processes before it, a queue of n would need n * n open pipes, and each death would wake all.

What can fail:

- *A line is lost*, because the pipe of a stopped process is full, or because no descriptor is left. The
  waiter's heartbeat finds out, within about a second.
- *A pipe cannot be opened* for another reason than death (no descriptor is left, a user has removed
  it). That proves no death: the waiter relies on its heartbeat, and the lease's end decides.
- *A process sees another boot*, in another container or time namespace of this machine. Their clocks differ,
  so neither can tell when a lease of the other has ended. A process that opens the directory first creates
  its own pipe, whose name contains the boot, and then looks for living processes of another boot. If it
  finds one, it is rejected. Of two that open the directory at the same time, at least one finds the other.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import select
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Final

from ..._core.ports import CheckAgain, Granted, Switchboard
from ..._platform.forks import close_in_children
from ..._platform.threads import BackgroundThread
from .directory import Directory, is_pipe, no_fork

_CAPACITY: Final = 64 * 1024  # Bytes that fit into a pipe.

_LINGER: Final = 3600.0
"""Seconds that the pipe of a process stays that was found dead: its time of access is 0 then."""

_SPARE: Final = 16
"""Pipes that stay open without a waiter: queues often form again in one order."""

_DEAD: Final = 4096
"""How many deaths a process remembers."""


class Pipe(io.FileIO):
    """A pipe that is open for writing ("w"), or also for reading ("r+"), and does not block."""

    def __init__(self, name: str, mode: str, directory: int) -> None:
        flags = os.O_NONBLOCK | os.O_CLOEXEC | (os.O_RDWR if mode == "r+" else os.O_WRONLY)
        super().__init__(os.open(name, flags, dir_fd=directory), mode)

    def fileno(self) -> int:
        """Return the number of its descriptor, which is negative if it is closed."""
        return -1 if self.closed else super().fileno()


class Processes:
    """This process, and the others as it sees them. For ``notify`` and ``close_up``, see ``cells.Notifier``."""

    def __init__(self, directory: Directory, process: str, switchboard: Switchboard) -> None:
        self.process = process
        self._directory = directory
        self._switchboard = switchboard
        self._watched: dict[str, Sequence[str]] = {}
        """The processes that each waiter here watches, or has watched."""
        # Nothing waits while it is held. A signal handler may lock a key in the thread that is inside.
        self._guard = threading.RLock()
        self._ours: Pipe | None = None
        self._theirs: dict[str, Pipe] = {}
        """The pipes of those that waiters here watch. Only the thread closes them."""
        self._dead: set[str] = set()
        self._thread = BackgroundThread("weblock-listener", self._listen)
        self._closed = threading.Event()
        try:
            self._make_pipe()
            self._look_around()
        except BaseException:
            self.close()
            raise

    def notify(self, process: str, owner: str, granted: Granted) -> None:
        if process == self.process:
            self._switchboard.notify(owner, granted)
        else:
            self._send(process, f"{owner} {granted.fence} {granted.until}")

    def close_up(self, process: str, owner: str) -> None:
        if process == self.process:
            self._switchboard.notify(owner, CheckAgain())
        else:
            self._send(process, owner)

    def alive(self, process: str) -> bool:
        """Return whether a process lives; if unknown, yes until its lease ends.

        A lease that is on its way to another process belongs to none, which never dies.
        """
        if process in ("", self.process):
            return True
        with contextlib.suppress(OSError), self._guard:
            if pipe := self._theirs.get(process):
                poller = select.poll()
                poller.register(pipe, 0)
                if poller.poll(0):  # It has no reader any more.
                    self._bury(process)
            elif process not in self._dead:
                self._open(process).close()
        return process not in self._dead

    def watch(self, owner: str, ahead: Iterable[str], *, first: bool) -> None:
        """Make a waiter ask again when the nearest live process of ``ahead`` dies.

        Before the ``first`` waiter there are only holders, and the death of any of them counts. A
        process that died in the queue stays ahead until it is passed over.
        """
        if not self._closed.is_set():
            self._thread.start()
        if first:
            holders = [each for each in ahead if each != self.process]
            self._note(owner, holders)
            if any(not self._follow(holder) and holder in self._dead for holder in holders):
                self._switchboard.notify(owner, CheckAgain())
            return
        all_are_dead = True
        for process in ahead:
            if process == self.process:  # Another waiter here is before it, and watches.
                self._note(owner, ())
                return
            # Before its pipe is opened: its end may come at once.
            self._note(owner, (process,))
            if self._follow(process):
                return
            all_are_dead = all_are_dead and process in self._dead
        if all_are_dead:
            self._switchboard.notify(owner, CheckAgain())

    def close(self) -> None:
        """Leave. To other processes we are dead from now on, and our leases void."""
        self._closed.set()
        self._look_again()
        self._thread.join()
        with self._guard:
            while self._theirs:
                self._theirs.popitem()[1].close()
        if self._ours:
            self._ours.close()
            with contextlib.suppress(OSError):
                os.unlink(self._name_of(self.process), dir_fd=self._directory.fd)

    def _note(self, owner: str, processes: Sequence[str]) -> None:
        self._watched[owner] = processes
        mailboxes = self._switchboard.mailboxes
        if len(self._watched) > 2 * len(mailboxes) + _SPARE:
            for each in [each for each in list(self._watched) if each not in mailboxes]:
                self._watched.pop(each, None)

    def _follow(self, process: str) -> bool:
        """Return whether this process will notice it when the other one dies."""
        with self._guard:
            if process not in self._theirs:
                try:
                    pipe = self._open(process)
                except OSError:
                    return False
                if self._theirs.setdefault(process, pipe) is pipe:
                    close_in_children(pipe)
                self._look_again()
        return True

    def _open(self, process: str) -> Pipe:
        """Open the pipe of a process for writing. Raises ``OSError``."""
        try:
            return Pipe(self._name_of(process), "w", self._directory.fd)
        except OSError as error:
            if error.errno == errno.ENXIO:
                self._bury(process)
            raise

    def _bury(self, process: str) -> None:
        """Remember a death: its proof, the pipe, may be removed."""
        if len(self._dead) >= _DEAD:
            self._dead.clear()
        self._dead.add(process)

    def _send(self, process: str, text: str) -> None:
        # A line break in front, too: what other programs have written may lack one.
        with contextlib.suppress(OSError), self._guard, contextlib.ExitStack() as opened:
            pipe = self._theirs.get(process) or opened.enter_context(self._open(process))
            pipe.write(f"\n{text}\n".encode())

    def _look_again(self) -> None:
        """Wake the thread, if it runs. One whose pipe is full is awake."""
        with contextlib.suppress(OSError, ValueError):
            if self._ours:
                self._ours.write(b"\n")

    def _listen(self) -> None:
        """Run the thread: it passes on what others write, and notices deaths."""
        ours = self._ours
        while ours and not self._closed.is_set():
            with self._guard:
                if len(self._theirs) > _SPARE:  # Close those that no waiter here watches any more.
                    mailboxes, pairs = self._switchboard.mailboxes, list(self._watched.items())
                    watched = {each for owner, some in pairs if owner in mailboxes for each in some}
                    for process in self._theirs.keys() - watched:
                        self._theirs.pop(process).close()
            theirs = {pipe.fileno(): process for process, pipe in list(self._theirs.items())}
            poller = select.poll()
            for fd in (ours.fileno(), *theirs):
                poller.register(fd, select.POLLIN)
            died: list[str] = []
            # Only this thread closes pipes, so that another number of them means that there is a new one.
            while not died and len(theirs) == len(self._theirs) and not self._closed.is_set():
                ready = [fd for fd, _ in poller.poll()]
                self._receive(ours)
                died = [theirs[fd] for fd in ready if fd in theirs]
            for process in died:
                with self._guard:
                    self._bury(process)
                    self._theirs.pop(process).close()
                for owner, those in list(self._watched.items()):
                    if process in those:
                        self._switchboard.notify(owner, CheckAgain())

    def _receive(self, pipe: Pipe) -> None:
        for line in filter(None, (pipe.read(_CAPACITY) or b"").split(b"\n")):
            # Else no process of weblock has written it.
            with contextlib.suppress(ValueError, IndexError):
                owner, *granted = line.decode().split(" ")
                if not granted:
                    self._switchboard.notify(owner, CheckAgain())
                elif math.isfinite(until := float(granted[1])):
                    self._switchboard.notify(owner, Granted(int(granted[0]), until))

    def _make_pipe(self) -> None:
        """Create our pipe. It gets its name only when it is open: before that, it looks like a death."""
        fd, name = self._directory.fd, self._name_of(self.process)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{name}.new", dir_fd=fd)  # Of an attempt that failed.
        os.mkfifo(f"{name}.new", 0o600, dir_fd=fd)
        os.chmod(f"{name}.new", 0o600, dir_fd=fd)  # The umask took away too much.
        with no_fork.lock:
            self._ours = Pipe(f"{name}.new", "r+", fd)
            close_in_children(self._ours)
        os.rename(f"{name}.new", name, src_dir_fd=fd, dst_dir_fd=fd)

    def _look_around(self) -> None:
        """Raise ``EngineUnavailable`` if a process lives here that sees another boot.

        Remove the pipes of processes that were first found dead so long ago that none of their leases is
        left. Until then they prove the death to processes that have not noticed it yet.
        """
        fd, now = self._directory.fd, time.time()
        for name in filter(is_pipe, os.listdir(fd)):
            with contextlib.suppress(FileNotFoundError):  # Another process may remove it.
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                try:
                    Pipe(name, "w", fd).close()
                except OSError as error:
                    if error.errno != errno.ENXIO:
                        raise
                    if found.st_atime:
                        os.utime(name, (0, now), dir_fd=fd)
                    elif now - found.st_mtime > _LINGER:
                        os.unlink(name, dir_fd=fd)
                    continue
                if name.split(".")[1] != self._directory.boot:
                    raise self._directory.unavailable(
                        f"another container of this machine uses {self._directory.path} too, and its clock"
                        " or boot id differs from those here: give each its own directory, run all processes"
                        " in one container, or use redis://"
                    )

    def _name_of(self, process: str) -> str:
        return f"{process}.{self._directory.boot}.bell"
