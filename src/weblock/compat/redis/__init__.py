# Generated from compat/redis/asyncio.py by scripts/generate: change that file, and run it.
"""redis-py's ``Lock``, on weblock: an application switches by changing an import.

``from weblock.compat.redis import Lock`` takes the place of ``from redis.lock import Lock``. The two
libraries do not exclude each other: switch all processes that lock. ``docs/migrate.md``
has what differs.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, Self

from ...errors import AlreadyHeld, EngineRecovering, LockTimeout
from ...sync import Lease, Locks
from .base import BaseLock, PerClient, translated

__all__ = ["Lock", "close", "configure"]

_locks = PerClient(Locks)


class Lock(BaseLock[Lease]):
    """A lock with the interface of ``redis.lock.Lock``."""

    def __enter__(self) -> Self:
        if not self.acquire():
            raise self._error("Unable to acquire lock within the time specified")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._released_at_the_end():
            self.release()

    def acquire(
        self,
        sleep: float | None = None,  # Nothing is polled.
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Return whether it was acquired within ``blocking_timeout`` seconds (None: no limit).

        It is not acquired while the server recovers, unless the recovery ends within that time.
        """
        terms = self._terms(blocking, blocking_timeout, token)
        with translated(self.name):
            try:
                lease = _locks.of(self.redis).acquire(self._key, **terms)
            except (LockTimeout, EngineRecovering):
                return False
            except AlreadyHeld as error:
                if terms["wait"] is None:
                    raise self._error(
                        "Cannot acquire a lock that this thread or task already holds: it would"
                        " wait for itself forever"
                    ) from error
                return False
        self._local.lease = lease
        return True

    def locked(self) -> bool:
        """Return whether any process holds the lock."""
        with translated(self.name):
            info = _locks.of(self.redis).inspect(self._key)
        return info is not None and info.holder is not None

    def owned(self) -> bool:
        """Return whether we hold it, by the server's answer."""
        with translated(self.name):
            info = _locks.of(self.redis).inspect(self._key)
        lease = self._local.lease
        return bool(info and lease and lease.held and info.fence == lease.fence)

    def release(self) -> None:
        """Release the lock. Raises ``LockError`` if it was not acquired or is not ours any more."""
        lease = self._held("release")
        self._local.lease = None
        with translated(self.name):
            lease.release()

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Add so many seconds, or have it end in so many, though never before it would have."""
        lease = self._held_for_a_time("extend")
        with translated(self.name):
            lease.extend(self._longer(lease, additional_time, from_now=replace_ttl))
        return True

    def reacquire(self) -> Literal[True]:
        """Let it end ``timeout`` seconds from now."""
        lease = self._held_for_a_time("reacquire")
        with translated(self.name):
            lease.extend(self._longer(lease, self.timeout, from_now=True))
        return True


def configure(client: object, **options: Any) -> None:
    """Set the options of a client's locks, before the first: those of ``Locks.from_client``.

    Raises ``ConfigurationError`` for options that cannot work, and if the client has locks already.
    """
    _locks.configure(client, options)


def close(client: object) -> None:
    """Free what the locks of a client have in this process, which else goes with the client."""
    if locks := _locks.leave(client):
        locks.close()
