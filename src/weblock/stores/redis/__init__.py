"""``redis://`` and its kin: leases on a Redis or Valkey server that all machines share.

The truth about a key is kept by Lua scripts (``lua/``), which make the same transitions as the
functions of ``_core.table``. Waiters are rung by publishing to the channel of their process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..._core.ports import Ask, Engine, Runtime, Store, Switchboard
from ..._platform.forks import heed_forks
from ..._requirements import require
from ..findings import Finding
from ..url import without_secrets
from .settings import Settings, parse

if TYPE_CHECKING:
    from .connections import Connections

__all__ = ["RedisEngine", "adopt", "open_engine"]


def open_engine(url: str, **options: Any) -> RedisEngine:
    """Return the engine of a URL; its options may also be given by name.

    It connects when it is first used. Raises ``ConfigurationError``.
    """
    require(without_secrets(url), "redis")
    return RedisEngine(parse(url, options))


def adopt(client: object, **options: Any) -> RedisEngine:
    """Return the engine of the server that a ready redis-py client talks to.

    Only its settings are used: the connections are our own. Raises ``ConfigurationError``.
    """
    require("a redis-py client", "redis")
    from .clients import settings_of

    return RedisEngine(settings_of(client, options))


class RedisEngine(Engine):
    """The leases of one deployment, as this process sees them."""

    scope = "cluster"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.name
        self.recovery = settings.recovery
        self.after_fork()
        heed_forks(self)

    def after_fork(self) -> None:
        """Begin with nothing open."""
        from .connections import Connections

        self.switchboard = Switchboard()
        self._connections: Connections = Connections(self.settings, self.switchboard)

    def connect(self, runtime: Runtime) -> Store:
        return self._connections.store(suspends=runtime.suspends, renews=runtime.renews)

    def diagnose(self) -> Iterable[Finding]:
        """Return what there is to know of the servers."""
        from .servers import diagnose

        return diagnose(self._connections, self.settings)

    def close(self) -> None:
        """End all connections. Callers that still wait here are notified."""
        self._connections.close()
        self.switchboard.ring_all(Ask())
