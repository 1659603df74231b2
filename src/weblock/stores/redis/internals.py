"""All private names of redis-py that weblock uses; ``tests/test_private_names.py`` notices when one goes away.

redis-py opens a connection, with TLS, passwords and all, and has no public way to hand its socket over.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import redis
    import redis.asyncio


def socket_of(connection: redis.Connection) -> socket.socket:
    """Return the socket of a connected connection, which goes on owning it."""
    sock: socket.socket = connection._sock  # type: ignore[assignment]  # noqa: SLF001
    return sock


def take_writer(connection: redis.asyncio.Connection) -> asyncio.StreamWriter:
    """Take the stream out of a connected connection, which is of no more use and owns nothing then."""
    writer, connection._writer, connection._reader = connection._writer, None, None  # noqa: SLF001
    connection._parser.on_disconnect()  # noqa: SLF001
    assert writer is not None
    return writer


def forced_master_of(sentinel: object) -> str | None:
    """Return the address at which a ``Sentinel`` finds its master, whatever the Sentinels say."""
    return getattr(sentinel, "_force_master_ip", None)  # redis-py 5.1 and later.
