"""``postgresql://``: leases in a table of a PostgreSQL server. A key is a row.

``engine`` is what one process has of the server, and notifies the waiters of this process. ``statements``
has the SQL, and ``cells`` lets ``CellStore`` work on rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._requirements import require
from ..url import without_secrets

if TYPE_CHECKING:
    from .engine import PostgreSQLEngine


def open_engine(url: str) -> PostgreSQLEngine:
    """Return the engine of ``postgresql://user:password@host:port/database``.

    It connects when it is first used. Raises ``ConfigurationError``.
    """
    require(without_secrets(url), "postgresql")
    from .engine import PostgreSQLEngine
    from .settings import parse

    return PostgreSQLEngine(parse(url))
