"""The locks of one request of a WSGI application, and what the request names, as its application reads it.

In PEP 3333, texts are bytes in disguise: the server has undone the percent-encoding, and put each byte into
one character, as latin-1 does.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final, Self, Unpack
from wsgiref.types import WSGIEnvironment

from ..._options import HoldOptions
from ..._runtime.blocking import drive
from ...errors import ConfigurationError
from ...keys import CheckedKey, in_order
from ...sync import Lease, Locks
from ..kit import BODY_WAIT, Book, Headers, RequestLeases, innermost
from .body import Body, size_of_body
from .clients import watch

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
    return functools.partial(_header, environ)


def text_of(disguised: str) -> str:
    """Return the text of bytes in disguise; bytes that are not UTF-8 are replaced."""
    return disguised.encode("latin-1", errors="replace").decode(errors="replace")


def _header(environ: WSGIEnvironment, wanted: str) -> list[str]:
    name = wanted.upper().replace("-", "_")
    value = environ.get(name if name in _WITHOUT_PREFIX else f"HTTP_{name}")
    return [] if value is None else [value]
