"""``redis://`` and its kin: leases on a Redis or Valkey server that all machines share.

The truth about a key is kept by Lua scripts (``lua/``), which make the same transitions as the
functions of ``_core.table``. Waiters are notified by publishing to the channel of their process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..._core.ports import Runtime, Store
from ..._requirements import require
from ..findings import Finding
from ..transport.settings import ServerEngine
from ..url import without_secrets
from .settings import Deployment, Settings, parse

if TYPE_CHECKING:
    from .connections import Connections

__all__ = ["RedisEngine", "adopt", "open_engine"]


def open_engine(url: str) -> RedisEngine:
    """Return the engine of a URL. It connects when it is first used. Raises ``ConfigurationError``."""
    require(without_secrets(url), "redis")
    return RedisEngine(parse(url))


def adopt(client: object, **options: Any) -> RedisEngine:
    """Return the engine of the server that a ready redis-py client talks to.

    Only its settings are used: the connections are our own. Raises ``ConfigurationError``.
    """
    require("a redis-py client", "redis")
    from .clients import settings_of

    return RedisEngine(settings_of(client, options))


class RedisEngine(ServerEngine):
    """The leases of one deployment, as this process sees them."""

    settings: Settings

    def after_fork(self) -> None:
        from .connections import Connections

        super().after_fork()
        self.fails_as_one = self.settings.deployment is not Deployment.CLUSTER
        self._connections: Connections = Connections(self.settings, self.switchboard)

    def connect(self, runtime: Runtime) -> Store:
        return self._connections.store(suspends=runtime.suspends, renews=runtime.renews)

    def diagnose(self) -> Iterable[Finding]:
        """Return what there is to know of the servers."""
        from .servers import diagnose

        return diagnose(self._connections, self.settings)

    def close(self) -> None:
        self._connections.close()
        super().close()
