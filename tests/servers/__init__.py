"""Servers for the tests: real ones, on free ports, that end with the tests."""

from __future__ import annotations

import atexit
import threading
import uuid
from typing import Any

from .binaries import a_redis, a_valkey, an_older_redis, binaries, binary
from .cluster import Cluster
from .memcached import Memcached
from .postgres import Postgres
from .proxy import Fault, Proxy
from .rights import USER, grant_least_rights
from .sentinel import SentinelDeployment
from .single import PortTaken, Server

__all__ = [
    "Cluster",
    "Fault",
    "Memcached",
    "PortTaken",
    "Postgres",
    "Proxy",
    "SentinelDeployment",
    "Server",
    "a_redis",
    "a_valkey",
    "an_older_redis",
    "binaries",
    "binary",
    "fresh_memcached",
    "fresh_quorum",
    "fresh_url",
    "shared",
]

_guard = threading.Lock()
_shared: dict[tuple[str | None, int], Server] = {}
_memcached: list[Memcached] = []


def shared(name: str | None = None, number: int = 0) -> Server:
    """A server that all tests of this process may use, each under a prefix of its own.

    ``number`` tells those of one name apart.
    """
    with _guard:
        if (name, number) not in _shared:
            _shared[name, number] = server = Server(name)
            atexit.register(server.close)
            grant_least_rights(server)
        return _shared[name, number]


def fresh_url(name: str | None = None, **query: Any) -> str:
    """An engine on a shared server that nobody has used, as the user with the least rights.

    The server has just been started, and nobody's leases were lost: there is nothing to wait for.
    """
    return _url(shared(name), query)


def fresh_quorum(count: int, **query: Any) -> list[str]:
    prefix = f"weblock:{uuid.uuid4().hex}"
    servers = [shared(number=number) for number in range(count)]
    return [_url(server, {"prefix": prefix, **query}) for server in servers]


def fresh_memcached() -> str:
    """An engine on a shared memcached that nobody has used."""
    with _guard:
        if not _memcached:
            _memcached.append(Memcached("-M"))
            atexit.register(_memcached[0].close)
    return _memcached[0].url(prefix=uuid.uuid4().hex, recovery="off")


def _url(server: Server, query: dict[str, Any]) -> str:
    prefix = f"weblock:{uuid.uuid4().hex}"
    return server.url(user=USER, **{"prefix": prefix, "recovery": "off", **query})
