"""The processes that lock in one directory: how they wake one another, and notice a death.

Each process binds two Unix sockets in the directory, named after it:

- its *bell*, which receives datagrams. A datagram tells one of its waiters that it has the lease, or
  makes the waiter ask the engine.
- its *life*, which only listens. A waiter's process connects to it, and when the process dies, however
  it dies, the kernel closes the connection. From then on both sockets refuse. So a death is noticed
  at once, and not guessed from process ids, which are used again.

The waiters of a key are a chain: each watches the nearest process before it that lives, and the first
one watches all holders. A death wakes only the waiters directly behind it; each of them asks the
engine, and finds another process to watch. A waiter that leaves the queue rings the one behind it,
which would otherwise go on watching a process that is not before it any more. If each waiter watched
all processes before it, a queue of n would need n * n connections, and each death would wake all.

What can fail:

- *A datagram is lost*, or the bell of a stopped process is full for half a second. The waiter's
  heartbeat finds out, within about a second.
- *A connection cannot be made* (no descriptor is left, a cleaner has removed the socket). That proves
  no death: the waiter relies on its heartbeat, and the lease's end decides.
- *A process sees another boot*: it runs in another container or time namespace of this machine. Their
  clocks differ, so neither can tell when a lease of the other has ended. The name of a *life* contains
  the boot. A process that opens the directory first binds its own sockets, and then looks for living
  processes of another boot. If it finds one, it is rejected. Of two that open the directory at the
  same time, at least one finds the other.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from ..._core.ports import Ask, Grasp, Switchboard
from ..._platform.forks import close_in_children
from ..._platform.threads import BackgroundThread
from ...errors import EngineUnavailable
from .directory import Directory, is_socket, lacks_descriptors

_MESSAGE: Final = struct.Struct("<32sQd")
_ASK: Final = 0
"""Stands in a message for a fence, to make a waiter ask: no lease has that fence."""

_BACKLOG: Final = 4096

_AGAIN_AFTER: Final = 0.001
_ATTEMPTS: Final = 500
"""How often, and after how many seconds, the thread tries to ring a bell that is full."""

_LINGER: Final = 3600.0
"""Seconds that the sockets of dead processes stay; those in use are touched often."""

_NEW: Final = "new"
"""The beginning of a socket's name until it can accept."""

_SPARE: Final = 16
"""Connections that are kept without a waiter: queues often form again in one order."""

_DEAD: Final = 4096
"""How many deaths a process remembers."""


class Waiters(Switchboard):
    """The waiters of this process, and the processes that each of them watches."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: dict[str, Sequence[str]] = {}

    def watch(self, owner: str, processes: Sequence[str]) -> None:
        self.watched[owner] = processes
        if owner not in self.bells:  # It has left meanwhile.
            self.watched.pop(owner, None)

    def disconnect(self, owner: str) -> None:
        super().disconnect(owner)
        self.watched.pop(owner, None)


class Processes:
    """This process, and the others as it sees them."""

    def __init__(self, directory: Directory, process: str, waiters: Waiters) -> None:
        self.process = process
        self._directory = directory
        self._waiters = waiters
        # Nothing waits while it is held. A signal handler may lock a key in the thread that is inside.
        self._guard = threading.RLock()
        self._lifelines: dict[str, socket.socket] = {}
        self._dead: dict[str, None] = {}
        self._unsent: deque[tuple[str, bytes]] = deque()
        self._thread = BackgroundThread("weblock-bell", self._listen)
        self._closed = False
        self._open: list[socket.socket] = []
        self._bells: list[socket.socket] = []
        self._lives: list[socket.socket] = []
        self._callers: list[socket.socket] = []
        try:
            self._sender = self._keep(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            self._probe = self._keep(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            self._waker, self._wakened = map(self._keep, socket.socketpair())
            self._bind()
            self._look_around()
        except EngineUnavailable:
            self._close_sockets()
            raise
        except BaseException as error:
            self._close_sockets()
            if not isinstance(error, OSError) or lacks_descriptors(error):
                raise
            raise directory.unavailable(
                f"no socket can be made in {directory.path}: {error.strerror}"
            ) from error

    def ring(self, process: str, owner: str, grasp: Grasp) -> None:
        """Notify a waiter that it has the lease. If that fails, its heartbeat finds out."""
        if process == self.process:
            self._waiters.ring(owner, grasp)
            return
        message = _MESSAGE.pack(owner.encode(), grasp.fence, grasp.until)
        if not self._send(process, message):
            self._unsent.append((process, message))
            self._wake_thread()

    def close_up(self, process: str, owner: str) -> None:
        """Make a waiter ask which one is before it now. If that fails, its heartbeat does."""
        if process == self.process:
            self._waiters.ring(owner, Ask())
        else:
            self._send(process, _MESSAGE.pack(owner.encode(), _ASK, 0.0))

    def alive(self, process: str) -> bool:
        """Return whether a process lives; if unknown, yes until its lease ends.

        A lease that is on its way to another process belongs to none, which never dies.
        """
        if process in {"", self.process}:
            return True
        if process in self._dead:
            return False
        try:
            with self._guard:
                self._probe.connect(self._directory.short_path(_bell_name(process)))
        except ConnectionRefusedError:
            self._bury(process)
            return False
        except OSError:
            pass  # There is no such socket. It may have been removed: that proves no death.
        return True

    def watch(self, owner: str, ahead: Sequence[str], *, first: bool) -> None:
        """Make a waiter ask again when the nearest live process of ``ahead`` dies.

        Before the ``first`` waiter there are only holders, and the death of any of them counts. A
        process that died in the queue stays ahead until it is passed over.
        """
        if not self._closed:
            self._thread.start()
        if first:
            holders = [each for each in ahead if each != self.process]
            self._waiters.watch(owner, holders)
            for holder in holders:
                self._is_connected(holder)
            if any(holder in self._dead for holder in holders):
                self._waiters.ring(owner, Ask())
            return
        for process in ahead:
            if process == self.process:  # Another waiter here is before it, and watches.
                self._waiters.watch(owner, ())
                return
            # Before the connection is made: its end may come at once.
            self._waiters.watch(owner, (process,))
            if self._is_connected(process):
                return
        if all(process in self._dead for process in ahead):
            self._waiters.ring(owner, Ask())

    def freshen(self) -> None:
        """Keep our sockets from programs that remove what was not touched for long.

        If they were removed, new ones are created; a process that is connected to the old ones
        stays so. Connections that others have closed are accepted, to make room in the backlog.
        """
        with self._guard:
            try:
                for name in (_bell_name(self.process), self._life_name(self.process)):
                    os.utime(name, dir_fd=self._directory.fd)
            except FileNotFoundError:
                self._bind()
            for life in self._lives:
                with contextlib.suppress(OSError):
                    while True:
                        self._callers.append(life.accept()[0])
                        close_in_children(self._callers[-1])
            callers, self._callers = self._callers, []
            for caller in callers:
                if _is_up(caller):
                    self._callers.append(caller)
                else:
                    caller.close()
        if self._thread.running:
            self._wake_thread()

    def close(self) -> None:
        """Leave. To other processes we are dead from now on, and our leases void."""
        self._closed = True
        self._wake_thread()
        self._thread.join()
        self._close_sockets()
        self._unlink()

    def _close_sockets(self) -> None:
        for each in (*self._open, *self._callers, *self._lifelines.values()):
            each.close()

    def _unlink(self) -> None:
        for name in (_bell_name(self.process), self._life_name(self.process)):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._directory.fd)

    def _is_connected(self, process: str) -> bool:
        """Return whether there is now a connection that ends when the process dies."""
        with self._guard:
            if process in self._dead or process in self._lifelines:
                return process not in self._dead
        return self._connect(process)

    def _connect(self, process: str) -> bool:
        try:
            line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:
            return False  # No descriptor is left.
        close_in_children(line)
        line.settimeout(0)
        try:
            line.connect(self._directory.short_path(self._life_name(process)))
        except OSError as error:
            line.close()
            if isinstance(error, ConnectionRefusedError):
                self._bury(process)
            return False
        with self._guard:
            kept = self._lifelines.setdefault(process, line)
        if kept is not line:
            line.close()
        self._wake_thread()
        return True

    def _bury(self, process: str) -> None:
        """Remember a death: its proof, the socket, may be removed."""
        self._dead[process] = None
        while len(self._dead) > _DEAD:
            self._dead.pop(next(iter(self._dead)), None)

    def _send(self, process: str, message: bytes) -> bool:
        """Send it, and return false if another attempt may help: only a full queue is worth one."""
        try:
            self._sender.sendto(message, self._directory.short_path(_bell_name(process)))
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def _wake_thread(self) -> None:
        if not self._closed:
            self._thread.start()
        with contextlib.suppress(OSError):  # One that has been woken so often is awake.
            self._waker.send(b"!")

    def _listen(self) -> None:
        """Run the thread: it passes messages on, notices deaths, and sends what was not sent."""
        attempts = 0
        while not self._closed:
            self._hang_up_spare()
            # Only this thread closes lifelines; it is woken when there is another.
            lines = {line.fileno(): process for process, line in tuple(self._lifelines.items())}
            bells = {bell.fileno(): bell for bell in tuple(self._bells)}
            poller = select.poll()
            for fd in (self._wakened.fileno(), *bells, *lines):
                poller.register(fd, select.POLLIN)
            only_rung = True
            while only_rung:
                ready = [fd for fd, _ in poller.poll(_AGAIN_AFTER * 1000 if self._unsent else None)]
                for fd in ready:
                    if bell := bells.get(fd):
                        self._receive(bell)
                only_rung = not self._unsent and all(fd in bells for fd in ready)
            self._hang_up([lines[fd] for fd in ready if fd in lines])
            with contextlib.suppress(BlockingIOError):
                while self._wakened.recv(4096):
                    pass
            attempts = attempts + 1 if self._unsent else 0
            self._send_again(give_up=attempts > _ATTEMPTS)

    def _receive(self, bell: socket.socket) -> None:
        """Receive one message; the bell is then ready for another, and waiters come in between."""
        try:
            # One byte more than a message has, so that a longer datagram is not cut to its length.
            owner, fence, until = _MESSAGE.unpack(bell.recv(_MESSAGE.size + 1))
            if math.isfinite(until):
                self._waiters.ring(owner.decode(), Grasp(fence, until) if fence != _ASK else Ask())
        except (OSError, struct.error, UnicodeDecodeError):
            pass  # No process of weblock has sent it.

    def _send_again(self, *, give_up: bool) -> None:
        for _ in range(len(self._unsent)):
            process, message = self._unsent.popleft()
            if not self._send(process, message) and not give_up:
                self._unsent.append((process, message))

    def _hang_up(self, processes: Sequence[str]) -> None:
        """Make the waiters directly behind processes that have died ask."""
        for process in processes:
            with self._guard:
                self._bury(process)
                line, waiters = self._lifelines.pop(process), tuple(self._waiters.watched.items())
            line.close()
            for owner, watched in waiters:
                if process in watched:
                    self._waiters.ring(owner, Ask())

    def _hang_up_spare(self) -> None:
        with self._guard:
            if len(self._lifelines) <= _SPARE:
                return
            watched = {each for every in tuple(self._waiters.watched.values()) for each in every}
            lines = [self._lifelines.pop(each) for each in self._lifelines.keys() - watched]
        for line in lines:
            line.close()

    def _bind(self) -> None:
        """Create our sockets. Each gets its name only when it is ready to accept."""
        for kind, name, bound in (
            (socket.SOCK_DGRAM, _bell_name(self.process), self._bells),
            (socket.SOCK_STREAM, self._life_name(self.process), self._lives),
        ):
            made = self._keep(socket.socket(socket.AF_UNIX, kind))
            fd = self._directory.fd
            made.bind(self._directory.short_path(f"{_NEW}.{name}"))
            if kind is socket.SOCK_STREAM:
                made.listen(_BACKLOG)
            os.chmod(f"{_NEW}.{name}", 0o600, dir_fd=fd)
            os.rename(f"{_NEW}.{name}", name, src_dir_fd=fd, dst_dir_fd=fd)
            bound.append(made)

    def _keep(self, made: socket.socket) -> socket.socket:
        close_in_children(made)
        made.settimeout(0)
        self._open.append(made)
        return made

    def _look_around(self) -> None:
        """Raise ``EngineUnavailable`` if a process lives here that sees another boot.

        Remove the sockets of processes that died so long ago that none of their leases is left. Until
        then they prove the death to processes that have not noticed it yet.
        """
        for name in filter(is_socket, os.listdir(self._directory.fd)):
            process, _, rest = name.partition(".")
            if process == _NEW:
                continue
            is_strange = name.endswith(".life") and rest != f"{self._directory.boot}.life"
            if is_strange and self.alive(process):
                self._unlink()
                raise self._directory.unavailable(
                    f"another container of this machine uses {self._directory.path} too, and its clock"
                    " or boot id differs from those here: give each its own directory, run all processes"
                    " in one container, or use redis://"
                )
            with contextlib.suppress(OSError):  # Another process may remove it.
                touched = os.stat(name, dir_fd=self._directory.fd, follow_symlinks=False).st_mtime
                if time.time() - touched > _LINGER and not self.alive(process):
                    os.unlink(name, dir_fd=self._directory.fd)

    def _life_name(self, process: str) -> str:
        return f"{process}.{self._directory.boot}.life"


def _bell_name(process: str) -> str:
    return f"{process}.bell"


def _is_up(line: socket.socket) -> bool:
    try:
        return line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
