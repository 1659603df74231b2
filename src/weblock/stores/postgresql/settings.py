"""What a PostgreSQL URL says: where the server is, as libpq reads it, and how it is used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from ..._core.ports import Recovery
from ...errors import ConfigurationError
from ..transport.settings import Reader, checked, flag, options_in, recovery, seconds, whole
from ..url import parts_of

DEFAULT_PORT: Final = 5432

TABLE: Final = "weblock_lease"


@dataclass(frozen=True)
class Settings:
    """How to reach the server, and how to lock there. Nothing secret shows in its ``repr``."""

    name: str
    """The URL, without secrets and options."""
    libpq: Mapping[str, Any] = field(repr=False)
    """What libpq needs to connect."""
    table: str = TABLE
    """The table that leases are kept in, perhaps after its schema and a dot."""
    create: bool = False
    """Whether a table that is missing is created."""
    timeout: float = 2.0
    """Seconds that the server has for an answer."""
    connect_timeout: int = 3
    """Seconds that each host has to accept a connection."""
    max_connections: int = 10
    """Connections of the threads of this process, and of each event loop, at most."""
    recovery: Recovery = field(default_factory=Recovery)


def parse(url: str) -> Settings:
    """Read a URL. Raises ``ConfigurationError``, whose message shows no password."""
    *_, query = parts_of(url)
    # For libpq, a plus sign is one, and no blank.
    theirs = options_in(query.replace("+", "%2B"), _IN_URL, engine="PostgreSQL")
    ours = {name: theirs.pop(name) for name in tuple(theirs) if name in _OPTIONS}
    place = url.partition("?")[0]
    try:
        libpq = conninfo_to_dict(f"{place}?{urlencode(theirs, quote_via=quote)}")
    except (psycopg.ProgrammingError, UnicodeDecodeError):
        libpq = None  # The error is not chained: its message quotes the URL, with the password.
    if libpq is None:
        raise ConfigurationError(
            "libpq cannot read the postgresql:// URL: write"
            " postgresql://user:password@host:port/database; a '/', '#' or '@' inside of a password"
            " must be percent-encoded"
        )
    return settings_of(libpq, ours)


def settings_of(libpq: Mapping[str, Any], options: Mapping[str, Any]) -> Settings:
    """Return the settings for libpq's parameters and our options.

    Raises ``ConfigurationError`` for an option that does not exist, or has an impossible value.
    """
    given = checked(options, _OPTIONS, engine="PostgreSQL")
    several = {"target_session_attrs": "read-write"} if "," in str(libpq.get("host", "")) else {}
    settings = Settings(_name(libpq), {}, **given)
    fixed = {"client_encoding": "utf8", "connect_timeout": settings.connect_timeout}
    return Settings(
        settings.name, {"application_name": "weblock", **several, **libpq, **fixed}, **given
    )


def _name(libpq: Mapping[str, Any]) -> str:
    hosts = str(libpq.get("host") or libpq.get("hostaddr") or "localhost").split(",")
    ports = str(libpq.get("port") or DEFAULT_PORT).split(",")
    if not all(re.fullmatch(r"\d{0,5}", port) for port in ports):
        raise ConfigurationError(
            "bad port in the postgresql:// URL: it must be a number; a '/', '#' or '@' inside of a"
            " password must be percent-encoded"
        )
    if len(ports) == 1:
        ports *= len(hosts)
    places = (
        f"{_host(host)}:{port or DEFAULT_PORT}" for host, port in zip(hosts, ports, strict=False)
    )
    database = libpq.get("dbname") or libpq.get("service") or ""
    return f"postgresql://{','.join(places)}/{database}"


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host.replace("/", "%2F")


def _table(name: str, value: Any) -> str:
    if not re.fullmatch(r"([a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,62}", str(value)):
        raise ConfigurationError(
            f"{name}={str(value)!r:.80} must be a table, or a schema and a table with a dot between"
            " them: lower-case letters, digits and _"
        )
    return str(value)


def _text(_name: str, value: str) -> str:
    return value


_OPTIONS: Final[dict[str, Reader]] = {
    "table": _table,
    "create": flag,
    "timeout": seconds,
    "connect_timeout": whole,
    "max_connections": whole,
    "recovery": recovery,
}

_OF_LIBPQ: Final = {
    each.keyword.decode()
    for each in Conninfo.get_defaults()
    # Not those for debugging, nor a login that asks a person.
    if each.dispchar != b"D" and not each.keyword.startswith(b"oauth_")
} - {"client_encoding", "connect_timeout", "fallback_application_name", "options"}
"""Parameters that are passed on to libpq. The others are ours, or change what our statements mean."""

_IN_URL: Final = dict.fromkeys({*_OPTIONS, *_OF_LIBPQ}, _text)
"""What a URL may have; ``settings_of`` looks at the values."""
