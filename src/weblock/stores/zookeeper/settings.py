"""A ZooKeeper URL: where the servers are, our user there, and where our nodes are."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from ...errors import ConfigurationError
from ..transport.options import Reader, options_in, seconds
from ..url import parts_of

DEFAULT_PORT: Final = 2181
DEFAULT_ROOT: Final = "/weblock"


@dataclass(frozen=True)
class Settings:
    """How to reach the servers, and how to lock there. Nothing secret shows in its ``repr``."""

    hosts: tuple[str, ...]
    root: str = DEFAULT_ROOT
    """The node below which we keep everything."""
    session_timeout: float = 10.0
    """Seconds after which the servers count a silent process as dead; we request it."""
    timeout: float = 2.0
    """Seconds that the servers have for an answer."""
    credentials: str = field(default="", repr=False)
    """User and password, for ACLs of the scheme ``digest``."""

    @property
    def name(self) -> str:
        """The URL, without secrets and options."""
        return f"zookeeper://{','.join(self.hosts)}{self.root}"


def parse(url: str) -> Settings:
    """Parse a URL. Raises ``ConfigurationError``, whose message shows no password."""
    userinfo, place, query = parts_of(url)
    hosts, slash, path = place.partition("/")
    return Settings(
        hosts=tuple(_host(each) for each in hosts.split(",")),
        root=_root(unquote(slash + path)),
        credentials=_credentials(userinfo),
        **options_in(query, _OPTIONS, engine="ZooKeeper"),
    )


def _host(text: str) -> str:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]*)(?::(\d{1,5}))?", text)
    if not match or not 0 < int(match[2] or DEFAULT_PORT) < 65536:
        harmless = re.sub(r":(?!\d+$).*", "", text)  # What is no port may be a password.
        raise ConfigurationError(
            f"the zookeeper:// URL names no server with {harmless!r:.80}: write"
            " zookeeper://host:port,host:port/chroot; a '/' or '@' inside of a password must be"
            " percent-encoded"
        )
    return f"{match[1] or 'localhost'}:{match[2] or DEFAULT_PORT}"


def _root(path: str) -> str:
    path = path.rstrip("/")
    if not path:
        return DEFAULT_ROOT
    if not re.fullmatch(r"(/[A-Za-z0-9_:-][A-Za-z0-9._:-]*){1,20}", path) or len(path) > 200:
        raise ConfigurationError(
            f"the zookeeper:// URL names no node with {path!r:.80}: write names of letters, digits"
            " or any of . _ : -, separated by '/'"
        )
    return path


def _credentials(userinfo: str) -> str:
    user, colon, password = userinfo.partition(":")
    if userinfo and not (user and colon and password):
        raise ConfigurationError(
            "the zookeeper:// URL has a user without a password, or a password without a user: write user:password@, or neither"
        )
    return f"{unquote(user)}:{unquote(password)}" if userinfo else ""


_OPTIONS: Final[dict[str, Reader]] = {"session_timeout": seconds, "timeout": seconds}
