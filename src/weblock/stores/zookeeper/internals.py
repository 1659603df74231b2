"""All private names of kazoo that weblock uses; ``tests/test_private_names.py`` notices when one goes away.

kazoo has no public way to end a connection without ending the session that it serves.
"""

from __future__ import annotations

import contextlib
import socket

from kazoo.client import KazooClient


def shut_down(client: KazooClient) -> None:
    """End the connection to a server, in any thread; kazoo looks for another server then."""
    sock = client._connection._socket  # noqa: SLF001
    if sock is not None:
        with contextlib.suppress(OSError):  # It was closed meanwhile.
            sock.shutdown(socket.SHUT_RDWR)


def close_sockets(client: KazooClient) -> None:
    """Close this process's copies of all sockets. The session of the process that it was forked from goes on."""
    connection = client._connection  # noqa: SLF001
    for sock in (connection._socket, connection._read_sock, connection._write_sock):  # noqa: SLF001
        if sock is not None:
            sock.close()
