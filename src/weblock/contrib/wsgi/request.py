"""The locks of one request of a WSGI application, its body, its client, and what it names, as its application reads it.

In PEP 3333, texts are bytes in disguise: the server has undone the percent-encoding, and put each byte into
one character, as latin-1 does.

WSGI has no message for a client that leaves, and no limit for a read. But some servers put more into ``environ`` than
it asks for: gunicorn and Werkzeug the connection itself, waitress a function; and uWSGI has a module. Where the
connection is shown, a thread ends the reads that take too long: it closes the receiving side of the connection, so
that the read returns. Elsewhere, only what has returned too late is rejected, and the server's own limit counts.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Self, Unpack
from wsgiref.types import WSGIEnvironment

from ..._options import HoldOptions
from ..._platform.forks import enter_child, getpid, process, reset_after_fork
from ..._platform.threads import BackgroundThread, patched_by
from ..._runtime.runtimes import drive
from ...errors import BodyTimeout, ConfigurationError
from ...keys import CheckedKey, in_order
from ...sync import Lease, Locks
from ..kit import AHEAD, BODY_WAIT, Book, ClientGone, Headers, Patience, RequestLeases, innermost

ENVIRON_KEY: Final = "weblock.request"
"""PEP 3333 leaves names with a dot to servers and middleware."""

_WITHOUT_PREFIX: Final = ("CONTENT_TYPE", "CONTENT_LENGTH")
"""The headers that CGI, and therefore WSGI, has under their own names."""


class RequestLocks(RequestLeases[Lease]):
    """Acquires for one request. The layer around the application releases, when its work is done."""

    __slots__ = ("_body", "locks")

    def __init__(
        self,
        locks: Locks,
        environ: WSGIEnvironment,
        within: Self | None = None,
        body_wait: float | None = BODY_WAIT,
    ) -> None:
        # Not environ itself, which has us: that cycle would be left to the garbage collector.
        super().__init__(within or Book(environ["REQUEST_METHOD"], path_of(environ)))
        self.locks = locks
        self.while_waiting = watch(environ)
        self._body: Body | None = None
        if size_of_body(environ) != 0:
            self._body = environ["wsgi.input"] = Body(environ, body_wait)

    def acquire(self, *keys: str, **options: Unpack[HoldOptions]) -> Lease:
        """Return the lease of the keys; those that this request holds are not acquired again.

        Waits as ``Locks.acquire`` does, and raises what it raises; gives up when the client has
        gone, where the server lets that be seen. Acquire keys that belong together in one call.
        Raises ``ConfigurationError`` when the request has ended, for nobody would release.
        """
        return self.hold(in_order(keys), options)

    def hold(self, keys: Sequence[CheckedKey], options: HoldOptions) -> Lease:
        """Acquire keys that ``in_order`` returned; for adapters. See ``acquire``."""
        if self.book.sessions and self.book.missing(self.locks, keys):
            from ..sqlalchemy.sessions import end_reading, sessions_of

            for session in sessions_of(self.book):
                end_reading(session)
        if self._body:
            self._body.read_ahead()
        return drive(self.take(self.locks, keys, options))

    def read_ahead(self) -> None:
        """Read the body, or 64 KiB of it, if that was not done before. Raises ``BodyTimeout``."""
        if self._body:
            self._body.read_ahead()


def request_locks(environ: WSGIEnvironment | None = None) -> RequestLocks:
    """Return the locks of a request: the one with this environ, or else the one that the caller serves.

    Without an environ, the request is found in the context (``contextvars``). So a service function can
    lock without knowing the request, and the lease lasts until the request's work is done. If the
    application has its own locks, as Flask's ``WebLock`` gives them, they are used; else those of the
    ``LockMiddleware``.

    Raises ``ConfigurationError`` outside a request, if weblock is not installed in the application, or
    if no rule of its ``LockMiddleware`` matches the request.
    """
    if environ is None:
        found = innermost(RequestLocks, for_application=True)
    else:
        found = environ.get(ENVIRON_KEY)
        # Checked here, because each request comes by, and few need more.
        if found is not None and (found.of_rules or found.over):
            found = innermost(RequestLocks, found.book, for_application=True) or found
    if found is None:
        raise ConfigurationError(
            "weblock serves no request here. In Flask, call weblock.contrib.flask.WebLock(app) where you"
            " create the application; with a LockMiddleware, add a rule that matches this request."
            " Outside a request, use locks.hold(...).",
            code="installation",
        )
    return found


def path_of(environ: WSGIEnvironment) -> str:
    """Return the path of a request, without its query; bytes that are not UTF-8 are replaced."""
    return text_of(environ.get("SCRIPT_NAME", "") + environ["PATH_INFO"])


def query_of(environ: WSGIEnvironment) -> str:
    """Return the query string as it was sent."""
    return text_of(environ.get("QUERY_STRING", ""))


def headers_of(environ: WSGIEnvironment) -> Headers:
    """Return a function from the name of a header to its values.

    The server has put those of one name together, with commas: the application sees one, too.
    """

    def values(wanted: str) -> list[str]:
        name = wanted.upper().replace("-", "_")
        value = environ.get(name if name in _WITHOUT_PREFIX else f"HTTP_{name}")
        return [] if value is None else [value]

    return values


def text_of(disguised: str) -> str:
    """Return the text of bytes in disguise; bytes that are not UTF-8 are replaced."""
    return disguised.encode("latin-1", errors="replace").decode(errors="replace")


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


SOCKETS: Final = ("gunicorn.socket", "werkzeug.socket")
"""Where servers put the connection."""

_HUNG_UP: Final = getattr(select, "POLLRDHUP", 0)
"""Linux tells that the other side has closed, also when it has sent more than was read."""


def watch(environ: WSGIEnvironment) -> Callable[[], None] | None:
    """Return a function that raises ``ClientGone`` when the client has gone.

    Returns ``None`` where the server does not let us see that.
    """
    told: Callable[[], bool] | None = environ.get("waitress.client_disconnected")
    if told is None and _HUNG_UP and (descriptor := descriptor_of(environ)):
        told = functools.partial(_has_hung_up, descriptor)
    return functools.partial(_look, told) if told else None


def _look(is_gone: Callable[[], bool]) -> None:
    if is_gone():
        raise ClientGone


def descriptor_of(environ: WSGIEnvironment) -> Callable[[], int] | None:
    """Return a function that returns the descriptor of the connection; ``None`` where it is not shown."""
    for name in SOCKETS:
        connection = environ.get(name)
        if isinstance(connection, socket.socket):
            return connection.fileno
    uwsgi: Any = sys.modules.get("uwsgi")
    if uwsgi is not None and hasattr(uwsgi, "connection_fd"):
        number: int = uwsgi.connection_fd()  # Of the request that this thread serves.
        return lambda: number
    return None


def _has_hung_up(descriptor: Callable[[], int]) -> bool:
    """Asks the kernel, and reads nothing: what the client has sent is for the application."""
    number = descriptor()
    if number < 0:
        return True
    new_poll = select.poll
    if patched_by() == "gevent":  # Its own knows nothing of this event.
        new_poll = importlib.import_module("gevent.monkey").get_original("select", "poll")
    poll = new_poll()
    poll.register(number, _HUNG_UP)
    return bool(poll.poll(0))
