"""Redis and Valkey servers for the tests: real ones, on free ports, that end with the tests."""

from __future__ import annotations

import atexit
import threading
import uuid
from typing import Any

from .binaries import a_redis, a_valkey, binaries, binary
from .cluster import Cluster
from .rights import USER, grant_least_rights
from .sentinel import SentinelDeployment, eventually
from .single import Server

__all__ = [
    "Cluster",
    "SentinelDeployment",
    "Server",
    "a_redis",
    "a_valkey",
    "binaries",
    "binary",
    "eventually",
    "fresh_url",
    "shared",
]

_guard = threading.Lock()
_shared: dict[str | None, Server] = {}


def shared(name: str | None = None) -> Server:
    """A server that all tests of this process may use, each under a prefix of its own."""
    with _guard:
        if name not in _shared:
            _shared[name] = server = Server(name)
            atexit.register(server.close)
            grant_least_rights(server)
        return _shared[name]


def fresh_url(name: str | None = None, **query: Any) -> str:
    """An engine on a shared server that nobody has used, as the user with the least rights.

    The server has just been started, and nobody's leases were lost: there is nothing to wait for.
    """
    prefix = f"weblock:{uuid.uuid4().hex}"
    return shared(name).url(user=USER, **{"prefix": prefix, "recovery": "off", **query})
