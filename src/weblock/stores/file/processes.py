"""The processes that lock in one directory: how they wake one another, and notice a death.

Each binds two Unix sockets, named after it. A datagram to its *bell* carries a grant to one of its
waiters. Its *life* listens and never accepts: whoever waits behind a process connects to it, and
when that process dies, however it dies, the kernel closes the connection. So a death is noticed at
once, without guessing from process ids, which come again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterable
from typing import Final

from ..._core.ports import Ask, Grasp, Switchboard
from .directory import Directory

_MESSAGE: Final = struct.Struct("<32sQd")
_BACKLOG: Final = 4096
_AGAIN_AFTER: Final = 0.001
_ATTEMPTS: Final = 500


def new_process() -> str:
    """A name that no process had before."""
    return secrets.token_hex(8)


class Processes:
    """This process, and the others as it sees them."""

    def __init__(self, directory: Directory, process: str, switchboard: Switchboard) -> None:
        self.process = process
        self._directory = directory
        self._switchboard = switchboard
        self._guard = threading.Lock()
        self._lifelines: dict[str, socket.socket] = {}
        self._watched: set[str] = set()
        self._dead: set[str] = set()
        self._unsent: deque[tuple[str, bytes]] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._remove_dead()
        self._sender = _unix_socket(socket.SOCK_DGRAM)
        self._bell = self._bind(socket.SOCK_DGRAM, _bell_name(process))
        self._life = self._bind(socket.SOCK_STREAM, _life_name(process))
        self._life.listen(_BACKLOG)

    def ring(self, process: str, owner: str, grasp: Grasp) -> None:
        """Tells a waiter that it has the lease. If that cannot be said, its heartbeat finds out."""
        if process == self.process:
            self._switchboard.ring(owner, grasp)
        elif not self._send(process, message := _MESSAGE.pack(owner.encode(), *grasp)):
            self._unsent.append((process, message))
            self._wake_thread()

    def alive(self, process: str) -> bool:
        """Whether a process lives; where that cannot be told, it does until its lease ends."""
        if process == self.process:
            return True
        if process in self._dead:
            return False
        line = self._lifelines.get(process)
        if line is None:
            return self._connect(process)
        if _is_up(line):
            return True
        self._hang_up(process)
        return False

    def watch(self, processes: Iterable[str]) -> None:
        """Has our waiters ask again when one of the processes dies: once for each death, since one
        that died in the queue stays ahead of them until it is passed over.
        """
        unwatched = set(processes) - self._watched - self._dead - {self.process}
        if not all([self.alive(process) for process in unwatched]):
            self._switchboard.ring_all(Ask())
        if unwatched:
            self._watched |= unwatched & self._lifelines.keys()
            self._wake_thread()
        self._start_thread()

    def freshen(self) -> None:
        """Keeps our sockets from those who remove what was not touched for long."""
        for name in (_bell_name(self.process), _life_name(self.process)):
            with contextlib.suppress(OSError):
                os.utime(name, dir_fd=self._directory.fd)

    def close(self) -> None:
        """Leaves. To others we are dead from now on, and our leases void."""
        self._closed = True
        self._wake_thread()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join()
        self.abandon()
        for name in (_bell_name(self.process), _life_name(self.process)):
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._directory.fd)

    def abandon(self) -> None:
        """Closes what is open and touches nothing else: after a fork it is the parent's."""
        for each in (self._sender, self._bell, self._life, *self._lifelines.values()):
            each.close()
        self._lifelines.clear()

    def _connect(self, process: str) -> bool:
        line = _unix_socket(socket.SOCK_STREAM)
        try:
            line.connect(self._directory.short_path(_life_name(process)))
        except ConnectionRefusedError:
            line.close()
            self._dead.add(process)
            return False
        except OSError:
            # No such socket, or too many connections to it: that proves no death.
            line.close()
            return True
        with self._guard:
            if process in self._lifelines:
                line.close()
            else:
                self._lifelines[process] = line
        return True

    def _hang_up(self, process: str) -> None:
        with self._guard:
            line = self._lifelines.pop(process, None)
            self._watched.discard(process)
            self._dead.add(process)
        if line:
            line.close()

    def _send(self, process: str, message: bytes) -> bool:
        """Whether there is nothing more to do. Only a full queue is worth another attempt."""
        try:
            self._sender.sendto(message, self._directory.short_path(_bell_name(process)))
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def _start_thread(self) -> None:
        if self._thread is None:
            with self._guard:
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(
                        target=self._listen, name="weblock-bell", daemon=True
                    )
                    self._thread.start()

    def _wake_thread(self) -> None:
        self._start_thread()
        self._send(self.process, b"")

    def _listen(self) -> None:
        """The thread: it passes grants on, and notices deaths."""
        attempts = 0
        while not self._closed:
            watched = {line.fileno(): process for process, line in tuple(self._lifelines.items())}
            poller = select.poll()
            poller.register(self._bell, select.POLLIN)
            for fd in watched:
                poller.register(fd, select.POLLIN)
            ready = poller.poll(_AGAIN_AFTER * 1000 if self._unsent else None)
            if any(fd in watched and not self.alive(watched[fd]) for fd, _ in ready):
                self._switchboard.ring_all(Ask())
            self._receive()
            attempts = attempts + 1 if self._unsent else 0
            self._send_again(give_up=attempts > _ATTEMPTS)

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                message = self._bell.recv(_MESSAGE.size)
                if len(message) == _MESSAGE.size:
                    owner, fence, until = _MESSAGE.unpack(message)
                    self._switchboard.ring(owner.decode(), Grasp(fence, until))

    def _send_again(self, *, give_up: bool) -> None:
        for _ in range(len(self._unsent)):
            process, message = self._unsent.popleft()
            if not self._send(process, message) and not give_up:
                self._unsent.append((process, message))

    def _bind(self, kind: socket.SocketKind, name: str) -> socket.socket:
        bound = _unix_socket(kind)
        bound.bind(self._directory.short_path(name))
        os.chmod(name, 0o600, dir_fd=self._directory.fd)
        return bound

    def _remove_dead(self) -> None:
        """Removes the sockets of processes that have died. Called by one process at a time, and
        while no other is between binding its socket and listening on it.
        """
        for name in os.listdir(self._directory.fd):
            process, _, kind = name.partition(".")
            if kind == "life" and process != self.process and not self.alive(process):
                for each in (_bell_name(process), _life_name(process)):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(each, dir_fd=self._directory.fd)


def _bell_name(process: str) -> str:
    return f"{process}.bell"


def _life_name(process: str) -> str:
    return f"{process}.life"


def _unix_socket(kind: socket.SocketKind) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.setblocking(False)
    return made


def _is_up(line: socket.socket) -> bool:
    try:
        return line.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
