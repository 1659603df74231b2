"""``redis://`` and its kin: leases on a Redis or Valkey server that all machines share.

The truth about a key is kept by Lua scripts (``lua/``), which make the same transitions as the
functions of ``_core.table``. Waiters are rung by publishing to the channel of their process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._core.ports import Ask, Runtime, Store, Switchboard
from ...errors import ConfigurationError
from ..forks import heed_forks
from ..url import without_secrets
from .settings import SCHEMES, Settings, parse

if TYPE_CHECKING:
    from .connections import Connections

__all__ = ["SCHEMES", "RedisEngine", "adopt", "open_engine"]


def open_engine(url: str, **options: Any) -> RedisEngine:
    """The engine that ``url`` names. What is an option of the URL may also be given by name.

    It connects when it is first used. Raises ``ConfigurationError``.
    """
    check_driver(without_secrets(url))
    return RedisEngine(parse(url, options))


def check_driver(wanted: str) -> None:
    """Raises ``ConfigurationError`` if what ``wanted`` names cannot be had for want of a driver."""
    try:
        import hiredis  # noqa: F401
        import redis  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"{wanted} needs redis-py and hiredis, and {error.name} is not installed:"
            " pip install 'weblock[redis]'"
        ) from error


def adopt(client: object, **options: Any) -> RedisEngine | None:
    """The engine of the server that a ready redis-py client talks to; ``None`` if it is none.

    Only its settings are used: the connections are our own.
    """
    if not any(base.__module__.startswith("redis.") for base in type(client).__mro__):
        return None
    from .clients import settings_of

    return RedisEngine(settings_of(client, options))


class RedisEngine:
    """The leases of one deployment, as this process sees them."""

    scope = "cluster"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.name
        self.switchboard = Switchboard()
        from .connections import Connections

        self._connections: Connections = Connections(settings, self.switchboard)
        heed_forks(self)

    def connect(self, runtime: Runtime) -> Store:
        return self._connections.store(suspends=runtime.suspends)

    def close(self) -> None:
        """Ends all connections. Whoever still waits here is told."""
        self._connections.close()
        self.switchboard.ring_all(Ask())

    def after_fork(self) -> None:
        self.switchboard.clear()
        self._connections.abandon()
