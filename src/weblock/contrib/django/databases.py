"""``django://alias``: the engine in a database of Django's, by its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from ...errors import ConfigurationError

SCHEME: Final = "django://"

_NOT_OF_LIBPQ: Final = frozenset({"assume_role", "isolation_level", "pool", "server_side_binding"})
"""Options of Django's, or of its connections alone."""


def alias_of(url: str) -> str:
    """Return the alias in ``DATABASES`` that ``django://alias?options`` names."""
    return url.removeprefix(SCHEME).partition("?")[0]


def url_of_database(url: str, databases: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the URL of the engine in the database that ``django://alias`` names.

    The engine has connections of its own, with the settings of Django's. Raises
    ``ConfigurationError`` for an alias that does not exist, or whose database has no engine.
    """
    alias, options = alias_of(url), url.partition("?")[2]
    database = databases.get(alias)
    if database is None:
        raise ConfigurationError(
            f"names the database {alias!r:.80} in URL; DATABASES has {', '.join(sorted(databases))}"
        )
    backend = str(database.get("ENGINE", ""))
    if not backend.endswith((".postgresql", ".postgis")):
        raise ConfigurationError(
            f"names the database {alias!r:.80} in URL, whose ENGINE is {backend!r:.80}: leases can be"
            " kept in PostgreSQL only"
        )
    given = {
        "host": database.get("HOST"),
        "port": database.get("PORT"),
        "dbname": database.get("NAME"),
        **{
            name: value
            for name, value in database.get("OPTIONS", {}).items()
            if name not in _NOT_OF_LIBPQ
        },
    }
    user = quote(str(database.get("USER") or ""), safe="")
    if password := database.get("PASSWORD"):
        user += f":{quote(str(password), safe='')}"
    set_here = {name: value for name, value in given.items() if value not in (None, "")}
    query = urlencode(set_here, quote_via=quote)
    return f"postgresql://{user}{'@' if user else ''}/?{'&'.join(filter(None, (query, options)))}"
