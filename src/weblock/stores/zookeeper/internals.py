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


SOCKETS = ("_socket", "_read_sock", "_write_sock")
"""The attributes of a connection for the socket to a server, and the two that wake kazoo's thread."""


class Socket:
    """One of the sockets that a client has at a time."""

    def __init__(self, client: KazooClient, name: str) -> None:
        self._client = client
        self._name = name

    def fileno(self) -> int:
        """Return its number, which is negative if it is closed, or if there is none."""
        sock: socket.socket | None = getattr(self._client._connection, self._name)  # noqa: SLF001
        return -1 if sock is None else sock.fileno()
