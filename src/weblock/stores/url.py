"""Engines by URL: the scheme names the module that opens it."""

from __future__ import annotations

import importlib
import ipaddress
import os
import re
from collections.abc import Sequence
from typing import Final

from .._core.ports import Engine
from ..errors import ConfigurationError
from .transport.settings import unknown

DEFAULT = "file://"

ENGINES: Final = {
    "file": "file",
    "memcached": "memcached",
    "memory": "memory",
    "noop": "noop",
    "postgres": "postgresql",
    "postgresql": "postgresql",
    "redis": "redis",
    "redis+cluster": "redis",
    "redis+sentinel": "redis",
    "rediss": "redis",
    "rediss+cluster": "redis",
    "rediss+sentinel": "redis",
    "unix": "redis",
    "valkey": "redis",
    "valkeys": "redis",
    "zookeeper": "zookeeper",
}
"""The module next to this one that opens the URLs of a scheme. It is imported when needed."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_engine(url: str | Sequence[str]) -> Engine:
    """Return a new engine for ``url``; for several URLs, a quorum.

    Raises ``ConfigurationError`` for a URL that no engine accepts.
    """
    if isinstance(url, list | tuple):
        quorum: Engine = importlib.import_module(f"{__package__}.quorum").open_quorum(url)
        return quorum
    found = _SCHEME.match(url) if isinstance(url, str) else None
    if not found:
        raise ConfigurationError(
            f"an engine URL looks like 'redis://localhost' or 'file:///var/lib/app/locks';"
            f" this one has no scheme: {shown(url)}"
        )
    scheme = found.group(1).lower()
    if scheme not in ENGINES:
        known = (f"{each}://" for each in ENGINES)
        raise ConfigurationError(unknown("engine for the URL scheme", f"{scheme}://", known))
    engine: Engine = importlib.import_module(f"{__package__}.{ENGINES[scheme]}").open_engine(url)
    return engine


def engine_of(client: object, **options: object) -> Engine:
    """Return an engine on the server that a ready client of its driver talks to.

    Raises ``ConfigurationError`` for a client that no engine knows, or an option it does not have.
    """
    if not _is_of_redis(client):
        raise ConfigurationError(
            f"no engine knows what to do with a {_type_of(client)}: give a redis-py client, or use"
            " from_url with an engine's URL"
        )
    engine: Engine = importlib.import_module(f"{__package__}.redis").adopt(client, **options)
    return engine


def refuse_what_is_no_url(url: object) -> None:
    """Raise ``ConfigurationError`` for a ready engine, client or path, with the remedy.

    And for a URL with white space around it: that of ``file://`` would name another directory, where
    nobody who has the same URL without it is excluded.
    """
    for each in url if isinstance(url, list | tuple) else (url,):
        if (
            isinstance(each, str)
            and each != each.strip()
            and (found := _SCHEME.match(each.strip()))
        ):
            raise ConfigurationError(
                f"the {found.group()} URL has white space around it, as one that was read from a"
                " file has a line end: give url.strip()"
            )
    if isinstance(url, str | bytes | list | tuple):
        return
    if url is None:  # A variable of the environment that is missing, most often.
        raise ConfigurationError(
            "the engine's URL is None: name an engine, such as 'redis://localhost', or leave the"
            " URL out for file://, this machine"
        )
    if isinstance(url, os.PathLike):
        hint = f"for a directory, write file://{os.fspath(url)!s:.80}"
    elif _is_of_redis(url):
        hint = "give a ready client to from_client"
    else:
        hint = "an engine URL is a string like 'redis://localhost', or a list of them"
    raise ConfigurationError(f"a {_type_of(url)} is not a URL: {hint}")


def _type_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _is_of_redis(value: object) -> bool:
    return any(base.__module__.partition(".")[0] == "redis" for base in type(value).__mro__)


def parts_of(url: str) -> tuple[str, str, str]:
    """Return the user and password of a URL, its place, and its options.

    Raises ``ConfigurationError`` for a server with a name that no host can have, and for an ``@``
    after a ``?``. It may belong to an option, or end a password that contains the ``?``: by the wrong
    guess, a part of the URL would become the server to which the password is sent.
    """
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    if "@" in query:
        raise ConfigurationError(
            f"the {scheme}:// URL has an '@' after a '?': write %40 for an '@' in an option, and"
            " %3F for a '?' in a password"
        )
    userinfo, _, place = rest.rpartition("@")
    hosts = place.partition("/")[0]
    for address, name in re.findall(r"(?:^|,)(?:\[([0-9A-Fa-f:.]+)[]%]|([^:,/%]+))", hosts):
        try:  # Drivers pass on the errors of either as they are.
            if address:
                ipaddress.ip_address(address)
            name.encode("idna")  # As every lookup does.
        except ValueError as error:
            # Without an ``@``, a name may be a password whose server was forgotten.
            named = f" {address or name!r:.80}" if userinfo or address else ""
            raise ConfigurationError(
                f"the {scheme}:// URL names a server{named}, and no host can have that name:"
                " write 1 to 63 characters between two dots, or an address such as [::1]"
            ) from (error if named else None)
    return userinfo, place, query


def without_secrets(url: str) -> str:
    """Return a URL without its user, its password and its options, which may be secret, too."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{_place_in(rest)}"


def shown(url: object) -> str:
    """Return a value that should have been a URL, for a message."""
    text = str(url)
    return repr(_place_in(text)[:80]) + ("" if "://" in text or text == _place_in(text) else "...")


def _place_in(text: str) -> str:
    """Return the part of a text that is no secret, be it a URL, or libpq's ``password=...``."""
    text, _, query = text.partition("?")
    return "" if "@" in query else re.split(r"[\s,;=]", text.rpartition("@")[2])[0]
