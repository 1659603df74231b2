"""The locks of one request of a WSGI application."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self, Unpack
from wsgiref.types import WSGIEnvironment

from ..._options import HoldOptions
from ..._runtime.blocking import drive
from ...errors import ConfigurationError
from ...keys import CheckedKey, in_order
from ...sync import Lease, Locks
from ..request import RequestLeases
from .clients import watch
from .target import path_of

ENVIRON_KEY: Final = "weblock.request"
"""PEP 3333 leaves names with a dot to servers and middleware."""


class RequestLocks(RequestLeases[Lease]):
    """Acquires for one request. The layer around the application releases, when its work is done."""

    __slots__ = ("locks",)

    def __init__(self, locks: Locks, environ: WSGIEnvironment, within: Self | None = None) -> None:
        # Not environ itself, which has us: that cycle would be left to the garbage collector.
        super().__init__(environ["REQUEST_METHOD"], path_of(environ), within)
        self.locks = locks
        self.while_waiting = watch(environ)

    def acquire(self, *keys: str, **options: Unpack[HoldOptions]) -> Lease:
        """Return the lease of the keys; those that this request holds are not acquired again.

        Waits as ``Locks.acquire`` does, and raises what it raises; gives up when the client has
        gone, where the server lets that be seen. Acquire keys that belong together in one call.
        Raises ``ConfigurationError`` when the request has ended, for nobody would release.
        """
        return self.hold(in_order(keys), options)

    def hold(self, keys: Sequence[CheckedKey], options: HoldOptions) -> Lease:
        """Acquire keys that ``in_order`` returned; for adapters. See ``acquire``."""
        return drive(self.take(self.locks, keys, options))


def request_locks(environ: WSGIEnvironment) -> RequestLocks:
    """Return the locks of the request whose ``environ`` this is.

    They acquire by the application's own locks if it has some, as Flask's ``WebLock`` gives them; else
    by those of the rule.

    Raises ``ConfigurationError`` where there is no request layer around the application, or no
    rule of a ``LockMiddleware`` matches.
    """
    found = environ.get(ENVIRON_KEY)
    if not isinstance(found, RequestLocks):
        raise ConfigurationError(
            "this request has no lock layer: have a rule of a LockMiddleware for it, or, in Flask,"
            ' call weblock.contrib.flask.WebLock(app, "redis://...") where the app is made'
        )
    if found.of_rules or found.over:  # Asked first, for it seldom is: each request comes here.
        return found.of_application()
    return found
