"""Keeps Flask-SQLAlchemy's ``db.session`` from committing without the lease."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from flask import Flask, has_app_context, has_request_context, request

from ...errors import ConfigurationError
from ...sync import Lease
from ..kit import watch_sessions
from ..kit.guarding import DATABASE_GUARD, GuardKind
from ..wsgi.request import ENVIRON_KEY, RequestLocks

if TYPE_CHECKING:
    from ..kit.idempotency import Asked, IdempotencySpec
    from ..sqlalchemy.idempotency import OneTransaction

_GUARDED: Final = "weblock.guarded"
"""Where a request notes the leases that guard its sessions, each with the seconds that its guard waits."""

JOINED: Final = "weblock.once"
"""Where a request notes the ``OneTransaction`` that its ``db.session`` has joined."""


class Database:
    """The sessions of an application, if it has any: no commit without the lease.

    Where a guard is wanted, the database itself refuses a holder whose key has passed to another.
    """

    _sessions: Any = None
    """``db.session`` of Flask-SQLAlchemy."""

    def __init__(self, app: Flask, guard: GuardKind, wait: float) -> None:
        """``wait`` is how many seconds a database waits for a former holder."""
        self._app = app
        self._guard = guard
        self._wait = wait

    def watch(self) -> None:
        """Check the sessions from now on, if the application has any."""
        watch_sessions()  # SQLAlchemy may have been imported after the extension was made.
        extension: Any = self._app.extensions.get("sqlalchemy")
        if self._sessions is None and hasattr(extension, "session"):
            from ..sqlalchemy import watch_registry

            self._sessions = extension.session
            watch_registry(extension.session, _guard_new, _before_commit)

    def end_reading(self) -> None:
        """End what ``db.session`` has read: it may be older than the request, as in a test's own context.

        Raises ``ConfigurationError`` if it has written already.
        """
        if self._sessions and self._sessions.registry.has():
            from ..sqlalchemy.sessions import end_reading

            end_reading(self._sessions())

    def guards(self, guard: GuardKind | None) -> bool:
        """Return whether the database guards a lock with this ``guard=``.

        Raises ``ConfigurationError`` if it is to, and there is no session that could tell it of the lease.
        """
        wanted = (guard or self._guard) == DATABASE_GUARD
        if wanted and self._sessions is None:
            raise ConfigurationError(
                "the guard in the database is for the db.session of Flask-SQLAlchemy, which this"
                " application does not have: install it, or leave the guard off and call"
                " weblock.contrib.sqlalchemy.guard(session, lease_of(), fence=True) in the view",
                code="unsuitable_guard",
            )
        return wanted

    def guard(self, lease: Lease) -> None:
        """Guard the sessions of the request with a lease that it holds: the one in use, and later ones.

        Raises ``ConfigurationError`` if the request has written already.
        """
        guarded: list[tuple[Lease, float]] = request.environ.setdefault(_GUARDED, [])
        known = {key for each, _wait in guarded for key in each.keys}
        if self._sessions and not known.issuperset(lease.keys):
            self.end_reading()
            if self._sessions.registry.has():
                from ..sqlalchemy import guard

                guard(self._sessions(), lease, fence=True, wait=self._wait)
            guarded.append((lease, self._wait))

    def one_transaction(
        self, spec: IdempotencySpec, asked: Asked, held: RequestLocks
    ) -> OneTransaction:
        """Return the transaction of an idempotent request, for ``db.session``; what it has read is ended.

        Raises ``ConfigurationError`` if there is none, or if it cannot join a transaction.
        """
        if self._sessions is None:
            raise ConfigurationError(
                "@locks.idempotent stores answers with the db.session of Flask-SQLAlchemy, which this"
                ' application does not have: install it, or write store="engine"'
            )
        from ..sqlalchemy.idempotency import OneTransaction

        self.end_reading()
        return OneTransaction(self._sessions(), spec, asked, held, held.locks)

    def around(self, app: WSGIApplication) -> WSGIApplication:
        """Return the application; a session that outlives a request is not guarded after it.

        A session ends with its application context, which may be a test's own, around many requests.
        """

        def serve(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            try:
                return app(environ, start_response)
            finally:
                if environ.get(_GUARDED) and has_app_context() and self._sessions:
                    self._sessions.remove()

        return serve


def _before_commit(session: Any) -> None:
    """Raise ``LeaseLost`` if the running request has lost a lease."""
    found: Any = request.environ.get(ENVIRON_KEY) if has_request_context() else None
    if isinstance(found, RequestLocks) and found.book.keys:
        session.flush()
        found.book.check()


def _guard_new(session: Any) -> None:
    """Guard a session that the request makes with what it holds: after ``db.session.remove()``, say.

    Raises ``ConfigurationError`` for a second one in an idempotent view, whose commits would be real ones.
    """
    from ..sqlalchemy import guard

    if has_request_context():
        if (joined := request.environ.get(JOINED)) and joined.is_joined:
            raise ConfigurationError(
                "an idempotent view uses a second db.session, which cannot be committed together with its"
                " answer: leave out db.session.remove(), and other application contexts",
                code="idempotency",
            )
        for lease, wait in request.environ.get(_GUARDED, ()):
            guard(session, lease, fence=True, wait=wait)
