"""The body of a request that locks: read before a key is acquired, and limited in time: see ``kit.input``.

No read of WSGI has a limit. Where the server shows the connection (see ``clients``), a thread ends the reads
that take too long: it closes the receiving side of the connection, so that the read returns. Elsewhere, only
what has returned too late is rejected, and the server's own limit counts.
"""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final
from wsgiref.types import WSGIEnvironment

from ..._platform.forks import enter_child, getpid, process, reset_after_fork
from ..._platform.threads import BackgroundThread
from ...errors import BodyTimeout
from ..kit import AHEAD, ClientGone, Patience
from .clients import descriptor_of

TICK: Final = 0.25
"""Seconds between two looks at the reads that are under way."""

REST_AFTER: Final = 60.0
"""Seconds without any read after which the thread ends."""


class Body:
    """``wsgi.input`` for the application: what was read ahead, and then the rest."""

    def __init__(self, environ: WSGIEnvironment, body_wait: float | None) -> None:
        self._input = environ["wsgi.input"]
        self._left = size_of_body(environ)
        self._descriptor = descriptor_of(environ)
        self._body_wait = body_wait
        self._patience: Patience | None = None
        self._ahead = io.BytesIO()
        self.taken = 0
        """Bytes that the application has read."""

    def read_ahead(self) -> None:
        """Read the body, or ``AHEAD`` bytes of it, if that was not done before. Raises ``BodyTimeout``."""
        if self._patience is None and self._body_wait is not None:
            self._patience = Patience(self._body_wait)
            self._ahead = io.BytesIO(self._read(AHEAD))

    def read(self, size: int | None = -1, /) -> bytes:
        """Return so many bytes, or all; fewer at the end. Raises ``BodyTimeout``."""
        wanted = -1 if size is None else size
        found = self._ahead.read(wanted)
        if len(found) != wanted:
            rest = () if wanted < 0 else (wanted - len(found),)
            if self._patience is None:
                found = self._in_time(lambda: self._input.read(*rest))
            else:
                found += self._read(*rest or (-1,))
        self.taken += len(found)
        return found

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return a line, or the first bytes of it. Raises ``BodyTimeout``."""
        wanted = -1 if size is None else size
        found = self._ahead.readline(wanted)
        if len(found) != wanted and not found.endswith(b"\n"):
            rest = () if wanted < 0 else (wanted - len(found),)
            found += self._in_time(lambda: self._input.readline(*rest))
        self.taken += len(found)
        return found

    def readlines(self, hint: int | None = -1, /) -> list[bytes]:
        """Return the lines that are left, or about so many bytes of them. Raises ``BodyTimeout``."""
        lines, size = [], 0
        for line in self:
            lines.append(line)
            size += len(line)
            if hint is not None and 0 < hint <= size:
                break
        return lines

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def _read(self, wanted: int) -> bytes:
        """Read so many bytes, or all, in parts that have a limit each."""
        if self._left is not None:  # Some servers wait for more if they are asked for more.
            wanted = self._left if wanted < 0 else min(wanted, self._left)
        found = bytearray()
        while wanted < 0 or len(found) < wanted:
            size = AHEAD if wanted < 0 else min(AHEAD, wanted - len(found))
            part = self._in_time(lambda size=size: self._input.read(size))  # type: ignore[misc]
            if not part:
                break
            found += part
        return bytes(found)

    def _in_time(self, read: Callable[[], bytes]) -> bytes:
        found = in_time(read, self._patience, self._descriptor)
        if self._left is not None:
            self._left -= len(found)
        return found


def size_of_body(environ: WSGIEnvironment) -> int | None:
    """Return the size of a request's body in bytes; ``None`` if the client does not announce it."""
    length = environ.get("CONTENT_LENGTH") or ""
    # Only HTTP/1 says in its headers whether there is a body.
    is_newer = environ.get("SERVER_PROTOCOL", "").startswith(("HTTP/2", "HTTP/3"))
    is_unknown = environ.get("HTTP_TRANSFER_ENCODING") or (is_newer and not length)
    if environ.get("wsgi.input_terminated") and is_unknown:
        return None
    return int(length) if length.isdecimal() else 0


def whole_body(environ: WSGIEnvironment, refuse: Callable[[int], None]) -> bytes:
    """Return the body of a request. Raises ``ClientGone``, and what ``refuse`` raises for its size."""
    size, body = size_of_body(environ), bytearray()
    refuse(size or 0)
    while size is None or len(body) < size:
        part = environ["wsgi.input"].read(AHEAD if size is None else min(AHEAD, size - len(body)))
        body += part
        refuse(len(body))
        if not part and size is not None:
            raise ClientGone
        if not part:
            break
    return bytes(body)


def in_time(
    read: Callable[[], bytes], patience: Patience | None, descriptor: Callable[[], int] | None
) -> bytes:
    """Return what ``read`` returns. Raises ``BodyTimeout`` if that takes too long."""
    if patience is None:
        return read()
    began = time.monotonic()
    under_way = _Read(descriptor, began + patience.left)
    late_reads.add(under_way)
    try:
        found = read()
    except Exception as error:
        if under_way.ended:  # The server does not know why the body has ended.
            raise BodyTimeout(patience.body_wait) from error
        raise
    finally:
        late_reads.remove(under_way)
    if under_way.ended:
        raise BodyTimeout(patience.body_wait)
    # Where the connection is seen, a read that nothing has ended was not late.
    patience.note(time.monotonic() - began, len(found), in_time=descriptor is not None)
    return found


class _Read:
    """A read that is under way."""

    __slots__ = ("_descriptor", "due", "ended")

    def __init__(self, descriptor: Callable[[], int] | None, due: float) -> None:
        self._descriptor = descriptor
        self.due = due
        self.ended = False

    def end(self) -> None:
        self.ended = True
        with suppress(OSError):  # The client has gone, or its connection is no socket.
            # Through a copy of the descriptor: the ``shutdown`` of an SSL socket would end the encryption.
            number = self._descriptor() if self._descriptor else -1
            with socket.socket(fileno=os.dup(number)) as connection:
                connection.shutdown(socket.SHUT_RD)


class _LateReads:
    """The reads of this process that are under way, and the thread that ends those that are late."""

    def __init__(self) -> None:
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        self._mutex = threading.Lock()
        self._reads: set[_Read] = set()
        self._thread = BackgroundThread("weblock-bodies", self._watch, lambda: bool(self._reads))

    def add(self, read: _Read) -> None:
        if getpid() != process.pid:
            enter_child()
        with self._mutex:
            self._reads.add(read)
        self._thread.start()

    def remove(self, read: _Read) -> None:
        with self._mutex:  # Once it is removed, its descriptor may be that of another connection.
            self._reads.discard(read)

    def _watch(self) -> None:
        used = time.monotonic()
        while time.monotonic() - used < REST_AFTER:
            time.sleep(TICK)
            with self._mutex:
                now = time.monotonic()
                used = now if self._reads else used
                for each in list(self._reads):
                    if each.due <= now and not each.ended:
                        each.end()


late_reads: Final = _LateReads()
