"""What the blocking and the asyncio ``Lock`` share."""

# ruff: noqa: E402 - only what fits can be imported
from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import threading
import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from ..._requirements import require

require("weblock.compat.redis", "redis")

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError, LockNotOwnedError

from ..._adapting import close, holdings_of
from ..._api import BaseLease, BaseLocks
from ..._core.holding import MARGIN
from ..._options import HoldOptions
from ..._platform.threads import end_later
from ...errors import ConfigurationError, EngineUnavailable, InvalidKey, LeaseLost
from ...keys import check_key

logger = logging.getLogger(__name__)

L = TypeVar("L", bound=BaseLease)
F = TypeVar("F", bound=BaseLocks)

_INSIDE = re.compile(
    r"lua_|do_(acquire|release|extend|reacquire)$|register_scripts$", re.IGNORECASE
)
"""How redis-py's lock works inside, which its subclasses and users can replace."""


class BaseLock(Generic[L]):
    """A description of a lock, and the lease of it that this thread has."""

    def __init_subclass__(cls) -> None:
        for name in vars(cls):
            _refuse_to_replace(name)

    def __setattr__(self, name: str, value: object) -> None:
        _refuse_to_replace(name)
        super().__setattr__(name, value)

    def __init__(
        self,
        redis: Any,
        name: str | bytes | memoryview,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        self.redis = redis
        self.name = name if isinstance(name, str) else bytes(name).decode(errors="surrogateescape")
        try:
            self._key: str = check_key(self.name)
        except InvalidKey:  # The names of redis-py's locks may have any bytes, and any length.
            whole = self.name.encode(errors="surrogateescape")
            self._key = f"sha256:{hashlib.sha256(whole).hexdigest()}"
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self._local: _Local[L] = _OfThread() if self.thread_local else _Local()

    @property
    def local(self) -> _Local[L]:
        """The ``token`` of the lease, as bytes, or ``None``."""
        return self._local

    def _terms(
        self, blocking: bool | None, blocking_timeout: float | None, token: str | bytes | None
    ) -> HoldOptions:
        """One with a ``timeout`` lasts so long. One without lasts while its process does."""
        if token is not None:
            raise self._error(_NO_CHOICE)
        wait = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        if not (self.blocking if blocking is None else blocking) or (wait or 0) < 0:
            wait = 0  # One attempt.
        if not self.timeout:
            return {"wait": wait}
        return {"wait": wait, "ttl": self.timeout, "renew": False}

    def _held(self, what: str) -> L:
        if (lease := self._local.lease) is None:
            raise self._error(f"Cannot {what} a lock that's not owned or is already unlocked.")
        return lease

    def _held_for_a_time(self, what: str) -> L:
        lease = self._held(what)
        if self.timeout is None:
            raise self._error(f"Cannot {what} a lock with no timeout")
        return lease

    def _longer(self, lease: L, seconds: float | None, *, from_now: bool) -> float:
        """Return by how much to extend a lease whose key is to end so much later, or in so many seconds.

        The holder of one of weblock's relies on it for a little less.
        """
        drift = max((each.terms.drift for each in holdings_of(lease)), default=0.0)
        relied_on = (seconds or 0.0) * (1 - drift)
        return max(0.0, relied_on - MARGIN - lease.remaining()) if from_now else relied_on

    def _error(self, message: str) -> LockError:
        return _named(LockError(message), self.name)

    @contextlib.contextmanager
    def _released_at_the_end(self) -> Iterator[None]:
        try:
            yield
        except LockError:
            if self.raise_on_release_error:
                raise
            logger.warning("Lock was unlocked or no longer owned when exiting context manager.")


class _Local(Generic[L]):
    """The lease of the running thread or task."""

    lease: L | None = None

    @property
    def token(self) -> bytes | None:
        return None if self.lease is None else self.lease.owner.encode()

    @token.setter
    def token(self, _value: object) -> None:
        raise LockError(_NO_CHOICE)


class _OfThread(_Local[L], threading.local):
    """The lease of each thread."""


_NO_CHOICE = (
    "token=... cannot be chosen: a caller that knew it could release the lock; leave it out"
)


def _refuse_to_replace(name: str) -> None:
    if _INSIDE.match(name):
        raise LockError(
            f"{name!r} of this lock cannot be replaced, because it has no such script or step: to"
            " change when the lock ends, call extend(seconds, replace_ttl=True) or reacquire()"
        )


@contextlib.contextmanager
def translated(name: str) -> Iterator[None]:
    """Raise what redis-py would."""
    try:
        yield
    except LeaseLost as error:
        not_owned = LockNotOwnedError(f"Cannot use a lock that's no longer owned: {error}")
        raise _named(not_owned, name) from error
    except EngineUnavailable as error:
        raise RedisConnectionError(str(error)) from error
    except ConfigurationError as error:
        raise _named(LockError(str(error)), name) from error


def _named(error: LockError, name: str) -> LockError:
    """Say which lock an error is about. As an argument, only redis-py 5.1 and later take its name."""
    error.lock_name = name
    return error


class PerClient(Generic[F]):
    """One ``Locks`` for all clients that share a pool of connections, for as long as it lives."""

    def __init__(self, api: type[F]) -> None:
        self._api = api
        self._known: weakref.WeakKeyDictionary[Any, F] = weakref.WeakKeyDictionary()

    def configure(self, client: Any, options: dict[str, Any]) -> None:
        """Create the locks of a client, with options of ``from_client``."""
        if _pool_of(client) in self._known:
            raise ConfigurationError(
                "the locks of this client exist already: call configure(client, ...) before the"
                " first",
                code="installation",
            )
        self.of(client, options)

    def of(self, client: Any, options: Mapping[str, Any] = MappingProxyType({})) -> F:
        """Return the locks of a client, which are created when first needed."""
        pool = _pool_of(client)
        if pool in self._known:
            return self._known[pool]
        ours = self._api.from_client(client, **options)
        locks = self._known.setdefault(pool, ours)  # Another thread may have come first.
        # The collector, which must not wait for it, may run in a thread that has a mutex.
        weakref.finalize(pool, end_later, partial(close, ours)).atexit = False
        return locks

    def leave(self, client: Any) -> F | None:
        """Forgets those of a client, which are to be closed."""
        return self._known.pop(_pool_of(client), None)


def _pool_of(client: Any) -> Any:
    """Return the pool that short-lived clients share; a cluster's client has only itself."""
    return getattr(client, "connection_pool", client)
