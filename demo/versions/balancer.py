"""HAProxy in front of the replicas: whatever the article's load balancer does, this one does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from demo.debian import program
from demo.engine import free_port
from demo.process import ServerError, running

_CONFIGURATION = """\
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s

frontend address
    bind 127.0.0.1:{port}
    default_backend replicas

backend replicas
    balance roundrobin
{servers}
"""


@asynccontextmanager
async def balancing(ports: Sequence[int], directory: Path) -> AsyncIterator[str]:
    """The URL whose requests go to the replicas in turn, while the block lasts.

    Raises ``ServerError`` if there is no HAProxy to be had, or it does not start.
    """
    try:
        haproxy = program("haproxy", "haproxy")
    except LookupError as error:
        raise ServerError(str(error)) from error
    port = free_port()
    servers = "\n".join(f"    server r{each} 127.0.0.1:{each}" for each in ports)
    configuration = directory / "haproxy.cfg"
    configuration.write_text(_CONFIGURATION.format(port=port, servers=servers))
    log = directory / "haproxy.log"
    with running("haproxy", [str(haproxy), "-db", "-f", str(configuration)], log) as process:
        await process.until_it_listens(port)
        yield f"http://127.0.0.1:{port}"
