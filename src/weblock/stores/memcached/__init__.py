"""``memcached://``: leases on one memcached. A key is an item, which is replaced as a whole.

``engine`` is what one process has of the server, and polls for waiters, because memcached cannot notify
them. ``items`` reads and replaces items, and says what times of other machines mean. ``server`` says
whether a server is fit for locks, and whether it has lost its data.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from ..._core.ports import Recovery
from ..._requirements import require
from ...errors import ConfigurationError
from ..transport.settings import flag, options_in, recovery, seconds, whole
from ..url import parts_of, shown, without_secrets

if TYPE_CHECKING:
    from .engine import MemcachedEngine

DEFAULT_PORT: Final = 11211


def open_engine(url: str) -> MemcachedEngine:
    """Return the engine of ``memcached://host:port``, which connects when it is first used.

    Raises ``ConfigurationError``.
    """
    require(without_secrets(url), "memcached")
    from .engine import MemcachedEngine

    return MemcachedEngine(parse(url))


class Settings(NamedTuple):
    """How to reach the server, and how to lock there."""

    host: str
    port: int
    prefix: str = "weblock"
    """The prefix of all our items."""
    timeout: float = 1.0
    """Seconds to wait for a connection, and for an answer."""
    max_connections: int = 20
    """Connections of the threads of this process, at most; the keeper has one more."""
    allow_eviction: bool = False
    recovery: Recovery = Recovery(0.0)

    @property
    def name(self) -> str:
        """The URL, without options."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"memcached://{host}:{self.port}"


def parse(url: str) -> Settings:
    """Parse a URL. Raises ``ConfigurationError``, whose message shows no password."""
    user, where, query = parts_of(url)
    if user:
        raise ConfigurationError(
            "a memcached:// URL names a user or a password, and no such login is supported: have"
            " the server listen on a private network only"
        )
    if "," in where:
        raise ConfigurationError(
            f"{shown(url)} names several servers, but memcached servers do not coordinate: name one"
        )
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/#\s]+)(?::(\d{1,5}))?/?", where)
    if not match or not 0 < int(match[2] or DEFAULT_PORT) < 65536:
        raise ConfigurationError(f"{shown(url)} names no server: write memcached://host:port")
    readers = {
        "prefix": _prefix,
        "timeout": seconds,
        "max_connections": whole,
        "recovery": recovery,
        "allow_eviction": flag,
    }
    options = {"recovery": Recovery(), **options_in(query, readers, engine="memcached")}
    return Settings(match[1].strip("[]"), int(match[2] or DEFAULT_PORT), **options)


def _prefix(name: str, text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,100}", text):
        raise ConfigurationError(
            f"{name}={text!r:.80} must be 1 to 100 letters, digits or any of . _ : -"
        )
    return text
