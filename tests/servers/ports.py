"""Free ports."""

from __future__ import annotations

import socket


def free_port(*, below: int = 32768) -> int:
    """A port of loopback that nobody listens on, and that no outgoing connection takes.

    A node of a cluster needs the one 10,000 above as well, and no port is larger than 65,535.
    """
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port: int = sock.getsockname()[1]
        # The system gives ephemeral ports; the same place further down is out of their range.
        port = 10_000 + port % (below - 10_000)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
