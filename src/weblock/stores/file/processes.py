"""The processes that lock in one directory: how they wake one another, and notice a death.

Each binds two Unix sockets, named after it. A datagram to its *bell* carries a grant to one of its
waiters. Its *life* listens: a waiter connects to the process directly before it in the queue, and
when that process dies, however it dies, the kernel closes the connection. From then on both sockets
refuse. So a death is noticed at once, without guessing from process ids, which come again.

The waiters of a key are a chain: each watches the nearest process before it that lives, and the first
one watches the holder. A death wakes only the waiters directly behind it, and each of them then asks
and finds another process to watch. A waiter that leaves the queue rings the one behind it, which
would otherwise go on watching a process that is not before it any more.

A name of a *life* contains the boot that its process sees. Two processes that see different boots run
in different containers, or in different time namespaces, of one machine: their clocks differ, so that
neither can tell when a lease of the other has ended. A process that opens the directory therefore
first binds its own sockets, and then looks for living processes of another boot. If it finds one, it is
rejected. Of two that open the directory at the same time, at least one finds the other.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from ..._core.ports import Ask, Grasp, Message
from ..._platform.forks import close_in_children
from ..._platform.greenlets import original
from ..._platform.threads import BackgroundThread
from ...errors import EngineUnavailable
from .directory import Directory, is_socket, lacks_descriptors
from .waiters import Waiters

_MESSAGE: Final = struct.Struct("<32sQd")
_ASK: Final = 0
"""Stands in a message for a fence, to make a waiter ask: no lease has that fence."""

_MANY: Final = 4096
_BACKLOG: Final = 4096
_AGAIN_AFTER: Final = 0.001
_ATTEMPTS: Final = 500

_LINGER: Final = 3600.0
"""Seconds that the sockets of dead processes stay; those in use are touched often."""

_NEW: Final = "new"
"""The beginning of a socket's name until it can accept."""

_SPARE: Final = 16
"""Connections that are kept without a waiter: queues often form again in one order."""

_DEAD: Final = 4096
"""How many deaths a process remembers."""


def new_process() -> str:
    """Return a name that no process had before."""
    return secrets.token_hex(8)


class Processes:
    """This process, and the others as it sees them."""

    def __init__(self, directory: Directory, process: str, waiters: Waiters) -> None:
        self.process = process
        self._directory = directory
        self._waiters = waiters
        # Nothing waits while it is held, nor does a finalizer that releases a lease inside.
        self._guard = original("threading", "RLock")()
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
            self._sender = self._keep(_unix_socket(socket.SOCK_DGRAM))
            self._probe = self._keep(_unix_socket(socket.SOCK_DGRAM))
            self._waker, self._wakened = map(self._keep, socket.socketpair())
            self._bind()
            self._refuse_other_boots()
            self._remove_dead()
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
        else:
            message = _MESSAGE.pack(owner.encode(), grasp.fence, grasp.until)
            if not self._send(process, message):
                self._unsent.append((process, message))
                self._wake_thread()

    def close_up(self, process: str, owner: str) -> None:
        """Make a waiter ask which one is before it now. If that fails, its heartbeat does."""
        if process == self.process:
            self._waiters.ask(owner)
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

    def watch(self, owner: str, ahead: Sequence[str], *, all_of_them: bool = False) -> None:
        """Make a waiter ask again when the nearest live process of ``ahead`` dies, or any of them.

        A process that died in the queue stays ahead until it is passed over.
        """
        self._start_thread()
        if all_of_them and len(ahead) > 1:
            self._watch_all(owner, [each for each in ahead if each != self.process])
            return
        all_dead = True
        for process in ahead:
            if process == self.process:
                self._waiters.watch(owner)  # Another waiter here is before it, and watches.
                return
            if self._follow(owner, process):
                return
            all_dead = all_dead and process in self._dead
        if all_dead:
            self._waiters.ask(owner)

    def _watch_all(self, owner: str, processes: Sequence[str]) -> None:
        """Make a waiter ask again when one of several holders dies."""
        self._waiters.watch(owner, *processes)
        for process in processes:
            self._follow(owner, process, *processes)
        if any(process in self._dead for process in processes):
            self._waiters.ask(owner)

    def _follow(self, owner: str, process: str, *watched: str) -> bool:
        """Return whether there is now a connection that tells the owner of the process's death."""
        with self._guard:
            self._waiters.watch(owner, *(watched or [process]))
            if process in self._dead or process in self._lifelines:
                return process not in self._dead
        return self._connect(process)

    def freshen(self) -> None:
        """Keep our sockets from programs that remove what was not touched for long.

        If they were removed, new ones are created; a process that is connected to the old ones
        stays so.
        """
        with self._guard:
            try:
                for name in (_bell_name(self.process), self._life_name(self.process)):
                    os.utime(name, dir_fd=self._directory.fd)
            except FileNotFoundError:
                self._bind()
            self._drop_callers_that_left()
        if self._thread.running:
            self._wake_thread()

    def close(self) -> None:
        """Leave. To other processes we are dead from now on, and our leases void."""
        self._closed = True
        self._wake_thread()
        self._thread.join()
        self._close_sockets()
        self._unlink(self.process)

    def _close_sockets(self) -> None:
        for each in (*self._open, *self._callers, *self._lifelines.values()):
            each.close()

    def _connect(self, process: str) -> bool:
        """Return whether it connected; if not, and no death is proven, a heartbeat retries."""
        try:
            line = _unix_socket(socket.SOCK_STREAM)
        except OSError:
            return False  # No descriptor is left.
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

    def _start_thread(self) -> None:
        if not self._closed:
            self._thread.start()

    def _wake_thread(self) -> None:
        self._start_thread()
        with contextlib.suppress(OSError):  # One that has been woken so often is awake.
            self._waker.send(b"!")

    def _listen(self) -> None:
        """Run the thread: it passes grants on, and notices deaths."""
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
            self._wake_up()
            attempts = attempts + 1 if self._unsent else 0
            self._send_again(give_up=attempts > _ATTEMPTS)

    def _hang_up(self, processes: Sequence[str]) -> None:
        for process in processes:
            with self._guard:
                self._bury(process)
                line, behind = self._lifelines.pop(process), self._waiters.behind(process)
            line.close()
            for owner in behind:
                self._waiters.ask(owner)

    def _hang_up_spare(self) -> None:
        with self._guard:
            if len(self._lifelines) <= _SPARE:
                return
            spare = self._lifelines.keys() - self._waiters.watched()
            lines = [self._lifelines.pop(process) for process in spare]
        for line in lines:
            line.close()

    def _receive(self, bell: socket.socket) -> None:
        """Receive one message; the bell is then ready for another, and waiters come in between."""
        with contextlib.suppress(OSError):
            # One byte more than a message has, so that a longer datagram is not cut to its length.
            rung = _rung(bell.recv(_MESSAGE.size + 1))
            if rung:
                self._waiters.ring(*rung)

    def _wake_up(self) -> None:
        """Consume all wake-up calls so far."""
        with contextlib.suppress(BlockingIOError):
            while self._wakened.recv(_MANY):
                pass

    def _send_again(self, *, give_up: bool) -> None:
        for _ in range(len(self._unsent)):
            process, message = self._unsent.popleft()
            if not self._send(process, message) and not give_up:
                self._unsent.append((process, message))

    def _bind(self) -> None:
        self._bells.append(self._bound(socket.SOCK_DGRAM, _bell_name(self.process)))
        self._lives.append(self._bound(socket.SOCK_STREAM, self._life_name(self.process)))

    def _bound(self, kind: socket.SocketKind, name: str) -> socket.socket:
        """Return a socket that gets its name only when it is ready to accept."""
        made = self._keep(_unix_socket(kind))
        fd = self._directory.fd
        made.bind(self._directory.short_path(f"{_NEW}.{name}"))
        if kind is socket.SOCK_STREAM:
            made.listen(_BACKLOG)
        os.chmod(f"{_NEW}.{name}", 0o600, dir_fd=fd)
        os.rename(f"{_NEW}.{name}", name, src_dir_fd=fd, dst_dir_fd=fd)
        return made

    def _keep(self, made: socket.socket) -> socket.socket:
        close_in_children(made)
        made.settimeout(0)
        self._open.append(made)
        return made

    def _drop_callers_that_left(self) -> None:
        """Accept closed connections, which take the room of others until then."""
        for life in self._lives:
            with contextlib.suppress(OSError):
                while True:
                    caller = life.accept()[0]
                    close_in_children(caller)
                    self._callers.append(caller)
        callers, self._callers = self._callers, []
        for caller in callers:
            if _is_up(caller):
                self._callers.append(caller)
            else:
                caller.close()

    def _refuse_other_boots(self) -> None:
        """Raise ``EngineUnavailable`` if a process lives here that sees another boot."""
        for name in os.listdir(self._directory.fd):
            process, _, rest = name.partition(".")
            boot, _, kind = rest.partition(".")
            if kind == "life" and boot != self._directory.boot and self.alive(process):
                self._unlink(self.process)
                raise self._directory.unavailable(
                    f"another container of this machine uses {self._directory.path} too, and its clock"
                    " or boot id differs from those here: give each its own directory, run all processes"
                    " in one container, or use redis://"
                )

    def _remove_dead(self) -> None:
        """Remove the sockets of processes that died so long ago that none of their leases is left.

        Until then they prove the death to processes that have not noticed it yet.
        """
        for name in os.listdir(self._directory.fd):
            process = name.partition(".")[0]
            is_ours = is_socket(name) and process != _NEW
            if is_ours and self._is_old(name) and not self.alive(process):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=self._directory.fd)

    def _life_name(self, process: str) -> str:
        return f"{process}.{self._directory.boot}.life"

    def _is_old(self, name: str) -> bool:
        try:
            touched = os.stat(name, dir_fd=self._directory.fd, follow_symlinks=False).st_mtime
        except FileNotFoundError:
            return False
        return time.time() - touched > _LINGER

    def _unlink(self, process: str) -> None:
        for name in (_bell_name(process), self._life_name(process)):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._directory.fd)


def _rung(message: bytes) -> tuple[str, Message] | None:
    """Return the owner that a datagram wakes, and its message; ``None`` if it is not ours."""
    try:
        packed, fence, until = _MESSAGE.unpack(message)
        owner = packed.decode()
    except (struct.error, UnicodeDecodeError):
        return None
    if not math.isfinite(until):
        return None
    return owner, Ask() if fence == _ASK else Grasp(fence, until)


def _bell_name(process: str) -> str:
    return f"{process}.bell"


def _unix_socket(kind: socket.SocketKind) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    close_in_children(made)
    made.settimeout(0)
    return made


def _is_up(line: socket.socket) -> bool:
    try:
        return line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
