"""``zookeeper://``: leases in a ZooKeeper ensemble, which agrees on each of them.

A key is a node, and its children are the lease and the places of waiters. ``nodes`` is the codec,
``session`` the transport. ZooKeeper's watches notify waiters. ``wire`` asks and reads, and ``store``
decides what happens.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

from ..._requirements import require
from ...errors import ConfigurationError
from ..transport.settings import options_in, seconds
from ..url import parts_of, without_secrets

if TYPE_CHECKING:
    from .engine import ZooKeeperEngine

DEFAULT_PORT: Final = 2181
DEFAULT_ROOT: Final = "/weblock"


def open_engine(url: str) -> ZooKeeperEngine:
    """Return the engine of ``zookeeper://host:port,host:port/chroot``, which connects when it is first used.

    Raises ``ConfigurationError``.
    """
    require(without_secrets(url), "zookeeper")
    from .engine import ZooKeeperEngine

    return ZooKeeperEngine(parse(url))


class Secret(str):
    """A text whose ``repr`` shows nothing. kazoo logs its requests, the login among them."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


class Settings(NamedTuple):
    """How to reach the servers, and how to lock there."""

    hosts: tuple[str, ...]
    root: str = DEFAULT_ROOT
    """The node below which we keep everything."""
    session_timeout: float = 10.0
    """Seconds after which the servers count a silent process as dead; we request it."""
    timeout: float = 2.0
    """Seconds that the servers have for an answer."""
    credentials: Secret = Secret()
    """User and password, for ACLs of the scheme ``digest``."""

    @property
    def name(self) -> str:
        """The URL, without secrets and options."""
        return f"zookeeper://{','.join(self.hosts)}{self.root}"


def parse(url: str) -> Settings:
    """Parse a URL. Raises ``ConfigurationError``, whose message shows no password."""
    userinfo, place, query = parts_of(url)
    user, colon, password = userinfo.partition(":")
    if userinfo and not (user and colon and password):
        raise ConfigurationError(
            "the zookeeper:// URL has a user without a password, or a password without a user:"
            " write user:password@, or neither"
        )
    hosts, slash, path = place.partition("/")
    root = unquote(slash + path).rstrip("/") or DEFAULT_ROOT
    if not re.fullmatch(r"(/[A-Za-z0-9_:-][A-Za-z0-9._:-]*){1,20}", root) or len(root) > 200:
        raise ConfigurationError(
            f"the zookeeper:// URL names no node with {root!r:.80}: write names of letters, digits"
            " or any of . _ : -, separated by '/'"
        )
    return Settings(
        hosts=tuple(_host(each) for each in hosts.split(",")),
        root=root,
        credentials=Secret(f"{unquote(user)}:{unquote(password)}" if userinfo else ""),
        **options_in(query, {"session_timeout": seconds, "timeout": seconds}, engine="ZooKeeper"),
    )


def _host(text: str) -> str:
    match = re.fullmatch(
        r"(\[[0-9A-Fa-f.]*:[0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?\]|[A-Za-z0-9._-]*)"
        r"(?::([0-9]{1,5}))?",
        text,
    )
    if not match or not 0 < int(match[2] or DEFAULT_PORT) < 65536:
        harmless = re.sub(r":(?!\d+$).*", "", text)  # What is no port may be a password.
        raise ConfigurationError(
            f"the zookeeper:// URL names no server with {harmless!r:.80}: write"
            " zookeeper://host:port,host:port/chroot; a '/' or '@' inside of a password must be"
            " percent-encoded"
        )
    return f"{match[1] or 'localhost'}:{match[2] or DEFAULT_PORT}"
