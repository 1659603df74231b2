"""``postgresql://``: leases in a table of a PostgreSQL server. A key is a row.

``statements`` has the SQL, ``rows`` the contents of a row, and ``cells`` lets ``CellStore`` work
on them; ``receiver`` notifies the waiters of this process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..._core.ports import Runtime, Store
from ..._requirements import require
from ..findings import Finding
from ..transport.engine import ServerEngine
from ..url import without_secrets

if TYPE_CHECKING:
    from .settings import Settings

__all__ = ["PostgreSQLEngine", "open_engine"]


def open_engine(url: str) -> PostgreSQLEngine:
    """Return the engine of ``postgresql://user:password@host:port/database``.

    It connects when it is first used. Raises ``ConfigurationError``.
    """
    require(without_secrets(url), "postgresql")
    from .settings import parse

    return PostgreSQLEngine(parse(url))


class PostgreSQLEngine(ServerEngine):
    """The leases in one table, as this process sees them."""

    settings: Settings

    tidy_at = 0.0
    """When rows that nobody uses are removed next, by the clock of any runtime."""

    def after_fork(self) -> None:
        from .connections import Connections

        super().after_fork()
        self.renewing = set[str]()
        self.connections = Connections(self.settings, self.switchboard)

    def connect(self, runtime: Runtime) -> Store:
        from .cells import RowStore

        return RowStore(self, runtime)

    def ddl(self) -> str:
        """The statements that create its table."""
        return self.connections.statements.ddl

    def diagnose(self) -> Iterable[Finding]:
        """Return what there is to know of the server."""
        from .diagnosis import diagnose

        return diagnose(self.connections)

    def close(self) -> None:
        self.connections.close()
        super().close()
