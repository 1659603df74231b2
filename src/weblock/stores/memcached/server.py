"""The server: whether it is fit for locks, whether it has lost its data, and what it keeps."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from pymemcache.client import base
from pymemcache.exceptions import MemcacheError, MemcacheUnexpectedCloseError

from ..findings import Finding, bytes_of, problem, refuse, share, time_of, warning
from ..transport.failures import Meanings, Unfit
from . import Settings

FAILURES: Final = (MemcacheError, OSError, Unfit)
"""The errors of a request that has failed."""

MEANINGS: Final[Meanings] = (
    ("out of memory", "its memory is full, and it takes and renews no leases: raise -m"),
    ("too large", "too many wait for one key: lower max_waiters, or raise -I"),
    (MemcacheUnexpectedCloseError, "it closed the connection"),
)

UPTIME_AHEAD: Final = 3
"""Seconds by which a server may overstate its uptime."""


class Client(base.Client):  # type: ignore[misc]  # The driver has no types.
    """A connection, which is opened by the first request."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(
            (settings.host, settings.port),
            connect_timeout=settings.timeout,
            timeout=settings.timeout,
            no_delay=True,
            default_noreply=False,
        )

    def fileno(self) -> int:
        """Return the number of its socket, which is negative if that is closed."""
        return self.sock.fileno() if self.sock else -1


def admitted(settings: Settings) -> Client:
    """Return a connection to a server that can keep locks. Raises ``Unfit``, or one of ``FAILURES``."""
    client = Client(settings)
    try:
        refuse(examine(client, settings))
    except BaseException:
        client.close()
        raise
    return client


def examine(client: Client, settings: Settings) -> Iterator[Finding]:
    """Return what the server tells of itself. A new connection is refused where it is a problem."""
    facts, options = client.stats(), client.stats("settings")
    version = bytes(facts.get(b"version", b"?")).decode(errors="replace")
    yield Finding(
        "version", f"It is memcached {version}, up for {time_of(facts.get(b'uptime', 0))}."
    )
    if options.get(b"cas_enabled") in (b"no", False, 0):
        yield problem("cas", "It was started with -C, but locks need CAS.", "Start it without -C.")
    text = "It keeps nothing on disk: a restart loses all leases"
    if pause := settings.recovery.seconds:
        yield Finding(
            "persistence", f"{text}, after which it grants none for {pause:g} s (recovery)."
        )
    else:
        yield warning(
            "persistence",
            f"{text}, and recovery=off lets it grant their keys again at once, while their holders"
            " run.",
            "Leave recovery at its default.",
        )
    if options.get(b"evictions") == b"off":
        yield Finding("eviction", "It never evicts a lease (-M).")
    elif settings.allow_eviction:
        yield warning(
            "eviction",
            "It might evict leases when its memory is full, and has evicted"
            f" {facts.get(b'evictions', 0)} items so far.",
            "Start it with -M, or use a separate server for locks.",
        )
    else:
        yield problem(
            "eviction",
            "It might evict leases when its memory is full.",
            "Start it with -M, use a separate server for locks, or accept lost leases with"
            " ?allow_eviction=true.",
        )
    used, most = facts.get(b"bytes", 0), facts.get(b"limit_maxbytes", 0)
    yield share("memory", f"It uses {bytes_of(used)} of {bytes_of(most)}.", used, most, "Raise -m.")
    used, most = facts.get(b"curr_connections", 0), facts.get(b"max_connections", 0)
    yield share(
        "connections", f"It has {used} of {most} connections in use.", used, most, "Raise -c."
    )


def begin_generation(client: Client, name: str) -> None:
    """Begin the generation of a server that is new to us, or has lost its data.

    Its name says at which uptime that was, and is told apart from all others.

    The server's counters show that it has lost nothing since it was started. ``stats reset`` sets them to
    zero, after a flush, say. They are therefore believed only if they account for each change of an item:
    the server numbers these for ``cas``, and goes on counting.
    """
    client.set(last := f"{name}-last", b"", 60)
    changes, stats = float(client.gets(last)[1] or "inf"), client.stats()
    lost_at = int(stats.get(b"uptime", 0))
    counted = sum(stats.get(each, 0) for each in (b"total_items", b"incr_hits", b"decr_hits"))
    if stats.get(b"cmd_flush") == stats.get(b"evictions") == 0 and changes <= counted:
        lost_at = min(lost_at, UPTIME_AHEAD)  # Not since it was started.
    client.add(name, b"%d-%s" % (lost_at, os.urandom(8).hex().encode()))


def begin_recovery(client: Client, generation: bytes, item: str, recovery: float) -> None:
    """Have a server grant no lease until ``recovery`` seconds after it has lost some.

    While the ``item`` is there, nothing is granted. Each client does so once for each
    generation that it sees, and the longest recovery counts for all.
    """
    uptime, lost_at = int(client.stats().get(b"uptime", 0)), int(generation.partition(b"-")[0])
    left = recovery - (uptime - lost_at)
    until, expiry = uptime + math.ceil(left), math.ceil(left) + 1
    while left > 0:
        found, token = client.gets(item, b"0")
        if int(found) >= until:
            return
        value = b"%d" % until
        if client.cas(item, value, token, expiry) if token else client.add(item, value, expiry):
            return


def items_on(settings: Settings, patience: float) -> list[str]:
    """Return the names of all items, whether they are weblock's or not.

    The driver cannot read an answer of several packets to a command that it does not know.
    """
    give_up_at, where = time.monotonic() + patience, (settings.host, settings.port)
    while True:
        names: list[str] = []
        line = b""
        with (
            socket.create_connection(where, settings.timeout) as sock,
            sock.makefile("rb") as lines,
        ):
            sock.sendall(b"lru_crawler metadump hash\r\n")
            for line in lines:
                if line == b"END\r\n":
                    return names
                if not line.startswith(b"key="):
                    break
                names.append(unquote(line[4:].partition(b" ")[0].decode()))
        if not line.startswith(b"BUSY") or time.monotonic() >= give_up_at:
            raise Unfit(f"it does not list its items: {line.decode():.80}")
        time.sleep(0.05)
