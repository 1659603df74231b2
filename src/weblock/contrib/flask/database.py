"""Keeps Flask-SQLAlchemy's ``db.session`` from committing without the lease."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from flask import Flask, has_app_context, has_request_context, request

from ...sync import Lease
from ..wsgi.request import ENVIRON_KEY, RequestLocks

if TYPE_CHECKING:
    from ..sqlalchemy import Sessions

FLASK_SQLALCHEMY: Final = "sqlalchemy"
"""Under which Flask keeps that extension."""

_GUARDED: Final = "weblock.guarded"


class Database:
    """The sessions of an application, if it has any: no commit without the lease.

    With ``guard_wait``, in seconds, the database itself refuses a holder whose key has passed to
    another.
    """

    def __init__(self, app: Flask, guard_wait: float | None) -> None:
        self._app = app
        self._guard_wait = guard_wait
        self._sessions: Sessions | None = None

    def watch(self) -> None:
        """Check the sessions from now on, if the application has any."""
        extension: Any = self._app.extensions.get(FLASK_SQLALCHEMY)
        if self._sessions is None and hasattr(extension, "session"):
            from ..sqlalchemy import Sessions

            self._sessions = Sessions(extension.session, _held)

    def end_reading(self) -> None:
        """End what the session has read, so that it reads anew under the lock and waits without a connection.

        Raises ``ConfigurationError`` if the request has written before it locks.
        """
        if self._sessions:
            self._sessions.end_reading()

    def guard(self, lease: Lease) -> None:
        """Record a lease that has just been acquired in the database."""
        if self._sessions and self._guard_wait is not None:
            self._sessions.guard(lease, wait=self._guard_wait)
            request.environ[_GUARDED] = True

    def around(self, app: WSGIApplication) -> WSGIApplication:
        """Return the application; a session that outlives a request is not guarded after it.

        A session ends with its application context, which may be a test's own, around many requests.
        """

        def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            try:
                return app(environ, start_response)
            finally:
                if environ.pop(_GUARDED, False) and has_app_context() and self._sessions:
                    self._sessions.remove()

        return serve


def _held() -> RequestLocks | None:
    """Return the leases of the running request, which must still be valid when it commits."""
    found: Any = request.environ.get(ENVIRON_KEY) if has_request_context() else None
    return found if isinstance(found, RequestLocks) and found.leases else None
