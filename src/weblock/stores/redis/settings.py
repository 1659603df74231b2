"""A Redis URL: where the servers are, our user there, and how we use them."""

from __future__ import annotations

import enum
import re
import socket
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import unquote

from ..._core.ports import Recovery
from ...errors import ConfigurationError
from ..transport.settings import Reader, flag, options_in, recovery, seconds, whole
from ..url import parts_of

DEFAULT_PORT: Final = 6379
SENTINEL_PORT: Final = 26379


class Deployment(enum.Enum):
    """How many servers there are, and who says which of them counts."""

    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


_SCHEMES: Final = {
    "redis": (Deployment.SINGLE, False),
    "rediss": (Deployment.SINGLE, True),
    "valkey": (Deployment.SINGLE, False),
    "valkeys": (Deployment.SINGLE, True),
    "unix": (Deployment.SINGLE, False),
    "redis+sentinel": (Deployment.SENTINEL, False),
    "rediss+sentinel": (Deployment.SENTINEL, True),
    "redis+cluster": (Deployment.CLUSTER, False),
    "rediss+cluster": (Deployment.CLUSTER, True),
}

SCHEMES: Final = tuple(_SCHEMES)


class Address(NamedTuple):
    """Where a server listens: a host and a port, or the path of a socket."""

    host: str
    port: int = 0

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host


@dataclass(frozen=True)
class Settings:
    """How to reach the servers, and how to lock there. Nothing secret shows in its ``repr``."""

    deployment: Deployment
    addresses: tuple[Address, ...]
    scheme: str = "redis"
    service: str = ""
    """The name under which the Sentinels know the master."""
    db: int = 0
    prefix: str = "weblock"
    """The prefix of all our keys and channels."""
    recovery: Recovery = field(default_factory=Recovery)
    min_replicas: int = 0
    timeout: float = 1.0
    """Seconds that a server has for an answer."""
    connect_timeout: float = 1.0
    max_connections: int = 20
    """Connections of the blocking API, at most."""
    allow_eviction: bool = False
    connection: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Further arguments of redis-py's connections: password, TLS, client name."""
    sentinel: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Arguments of redis-py's connections to the Sentinels."""
    sentinel_tls: bool = False
    """Whether the Sentinels are reached over TLS: a client may differ here from its master."""

    @property
    def name(self) -> str:
        """The URL, without secrets and options."""
        where = ",".join(map(str, self.addresses))
        if self.deployment is Deployment.SENTINEL:
            where += f"/{self.service}"
        return f"{self.scheme}://{where}" + (f"/{self.db}" if self.db else "")

    @property
    def buckets(self) -> int:
        """The number of parts of the keys, each of which lives on one server."""
        return 128 if self.deployment is Deployment.CLUSTER else 1

    @property
    def tls(self) -> bool:
        return _SCHEMES[self.scheme][1]


def parse(url: str) -> Settings:
    """Parse a URL. Raises ``ConfigurationError``, which shows nothing that stands before an ``@``."""
    userinfo, rest, query = parts_of(url)
    scheme = url.partition("://")[0].lower()
    deployment, tls = _SCHEMES[scheme]
    given = options_in(query, _OPTIONS, engine="Redis")
    user, _, password = userinfo.partition(":")
    named = {"username": unquote(user), "password": unquote(password)}
    connection = {
        **{name: value for name, value in named.items() if value},
        **{name: given.pop(name) for name in tuple(given) if name in OF_CONNECTION},
    }
    sentinel = {
        _OF_SENTINEL[name]: given.pop(name) for name in tuple(given) if name in _OF_SENTINEL
    }
    of_tls = [name for name in connection if name.startswith("ssl_")]
    if tls:
        # redis-py checks the host's name by itself only from its release 6 on. Without a certificate
        # that is checked, there is no name to check.
        checks = connection.get("ssl_cert_reqs", "required") not in ("none", None, ssl.CERT_NONE)
        connection.setdefault("ssl_check_hostname", checks)
        sentinel = {name: connection[name] for name in connection if "ssl_" in name} | sentinel
    elif of_tls:
        raise ConfigurationError(
            f"{of_tls[0]}= is an option of TLS, and {scheme}:// does not use TLS: write rediss://,"
            " rediss+sentinel:// or rediss+cluster://, or leave the option out"
        )
    place = _place(scheme, deployment, rest) | given
    if place.get("db") and deployment is Deployment.CLUSTER:
        raise ConfigurationError(f"a cluster has no databases, and the URL names db={place['db']}")
    return Settings(
        deployment,
        scheme=scheme,
        connection=connection,
        sentinel=sentinel,
        sentinel_tls=tls,
        **place,
    )


def _place(scheme: str, deployment: Deployment, rest: str) -> dict[str, Any]:
    if scheme == "unix":
        path = unquote(rest)
        if not path.startswith("/"):
            raise ConfigurationError(
                f"{scheme}://{rest:.80} names no socket: write unix:///absolute/path"
            )
        if not hasattr(socket, "AF_UNIX"):
            raise ConfigurationError(
                f"{scheme}://{rest:.80} needs Unix sockets, which Python does not have on this"
                f" machine ({sys.platform}): use redis://host"
            )
        return {"addresses": (Address(path),)}
    hosts, _, path = rest.partition("/")
    port = SENTINEL_PORT if deployment is Deployment.SENTINEL else DEFAULT_PORT
    place: dict[str, Any] = {
        "addresses": tuple(_address(scheme, each, port) for each in hosts.split(","))
    }
    if deployment is Deployment.SINGLE and "," in hosts:
        raise ConfigurationError(
            f"{scheme}://{hosts:.80} names several servers: write redis+cluster:// or"
            " redis+sentinel://"
        )
    parts = [unquote(part) for part in path.split("/") if part]
    if deployment is Deployment.SENTINEL:
        if not parts:
            raise ConfigurationError(
                f"{scheme}://{hosts:.80} does not say which master: add the name under which the"
                " Sentinels know it, as in redis+sentinel://host:26379/mymaster"
            )
        place["service"] = parts.pop(0)
    if parts:
        place["db"] = _from_0("the database in the URL", parts.pop(0))
    if parts:
        raise ConfigurationError(f"{scheme}://{hosts:.80}/{path:.80} has too many slashes")
    return place


def _address(scheme: str, text: str, port: int) -> Address:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:]*)(?::(.*))?", text)
    if not match:
        raise ConfigurationError(f"{scheme}://{text:.80} names no host: write host:port")
    host, number = match[1].strip("[]") or "localhost", match[2]
    if number is None:
        return Address(unquote(host), port)
    if not number.isdecimal() or not 0 < int(number) < 65536:
        raise ConfigurationError(
            f"bad port in the {scheme}:// URL: it must be a number from 1 to 65535; a '/', '#' or"
            " '@' inside of a password must be percent-encoded"
        )
    return Address(unquote(host), int(number))


def _provider(name: str, _value: Any) -> NoReturn:
    raise ConfigurationError(
        f"{name}= must be a redis.CredentialProvider: a URL cannot have one, so give a client that"
        " has it to from_client"
    )


def _from_0(name: str, value: Any) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"\d{1,9}", str(value)):
        raise ConfigurationError(f"{name}={str(value)!r:.40} must be a whole number, 0 or more")
    return int(value)


def _prefix(name: str, value: Any) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._:/-]{1,100}", str(value)):
        raise ConfigurationError(
            f"{name}={str(value)!r:.80} must be 1 to 100 letters, digits or any of . _ : / -"
        )
    return str(value)


OF_CONNECTION: Final = {
    "username",
    "password",
    "credential_provider",
    "client_name",
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_ca_data",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
    "ssl_cert_reqs",
    "ssl_check_hostname",
}

_OF_SENTINEL: Final = {"sentinel_username": "username", "sentinel_password": "password"}

OF_LOCKING: Final[dict[str, Reader]] = {
    "prefix": _prefix,
    "recovery": recovery,
    "min_replicas": _from_0,
    "timeout": seconds,
    "connect_timeout": seconds,
    "max_connections": whole,
    "allow_eviction": flag,
}
"""The options that do not say where the servers are, nor as whom they are reached."""

_OPTIONS: Final[dict[str, Reader]] = {
    **dict.fromkeys(OF_CONNECTION | set(_OF_SENTINEL), lambda _name, value: value),
    "credential_provider": _provider,
    "ssl_check_hostname": flag,
    "db": _from_0,
    **OF_LOCKING,
}
