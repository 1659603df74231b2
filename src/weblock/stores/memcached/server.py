"""Checks of the server: is it fit for locks, has it lost data, what does it keep."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from ...errors import EngineUnavailable
from .settings import Settings

if TYPE_CHECKING:
    from .connections import Client
    from .format import Names

UPTIME_AHEAD: Final = 3
"""Seconds by which a server may overstate its uptime."""


class Unfit(EngineUnavailable):
    """The server answers, and must not be used for locks: its reason says why, and the remedy."""


def refuse_unfit(client: Client, settings: Settings) -> None:
    """Raise ``Unfit`` if the server may evict leases, or has no ``cas``."""
    stats = client.stats("settings")
    if stats.get(b"cas_enabled") in (b"no", False, 0):
        raise Unfit(settings.name, "it was started with -C, and locks need cas: start it without")
    if stats.get(b"evictions") == b"on" and not settings.allow_eviction:
        raise Unfit(
            settings.name,
            "it may throw leases away when its memory is full: start it with -M, use a server"
            " of its own for locks, or accept lost leases with ?allow_eviction=true",
        )


def leave_mark(client: Client, names: Names) -> None:
    """Mark a server without a mark: it is new to us, or has lost its data.

    The mark says at which uptime that was, and is told apart from all others.
    """
    stats = client.stats()
    lost_at = int(stats.get(b"uptime", 0))
    if stats.get(b"cmd_flush") == stats.get(b"evictions") == 0:
        lost_at = min(lost_at, UPTIME_AHEAD)  # Not since it was started.
    client.add(names.mark, b"%d %s" % (lost_at, os.urandom(8).hex().encode()), noreply=False)


def heed_mark(client: Client, names: Names, mark: bytes, recovery: float) -> None:
    """Have a server grant no lease until ``recovery`` seconds after it has lost some.

    Each client does so once for each mark that it sees, and the longest recovery counts for all.
    """
    uptime = int(client.stats().get(b"uptime", 0))
    lost_at = mark.split()[0]
    left = recovery - (uptime - int(lost_at) if lost_at.isdigit() else 0)
    until = uptime + math.ceil(left)
    done = left <= 0
    while not done:
        found, token = client.gets_many([names.quiet]).get(names.quiet, (b"0", b""))
        if int(found) >= until:
            return
        value, expiry = b"%d" % until, math.ceil(left) + 1
        if token:
            done = bool(client.cas(names.quiet, value, token, expiry))
        else:
            done = client.add(names.quiet, value, expiry, noreply=False)


def add_unless_lost(
    client: Client, item: str, contents: bytes, expiry: int, flags: int, *, at: str, mark: bytes
) -> bool:
    """Add an item; return whether that was done, by a server whose mark was still the same afterwards.

    A server that has lost its data since the key was read adds the item of a key that others may
    hold. So the mark, which is the item ``at``, is read again behind the addition, in one round
    trip: the driver has no command for both.
    """
    from pymemcache.exceptions import MemcacheServerError

    start = b"add %s %d %d %d" % (item.encode(), flags, expiry, len(contents))
    client.sock.sendall(b"%s\r\n%s\r\nget %s\r\n" % (start, contents, at.encode()))
    answer: list[bytes] = []
    with client.sock.makefile("rb") as lines:
        for line in lines:
            answer.append(line.removesuffix(b"\r\n"))
            if answer[-1] == b"END":
                break
    if answer[-1:] != [b"END"]:
        raise ConnectionError("it closed the connection")
    added, *found = answer
    if added not in (b"STORED", b"NOT_STORED"):
        raise MemcacheServerError(added.removeprefix(b"SERVER_ERROR "))
    return added == b"STORED" and found[1:2] == [mark]


def items_on(client: Client, settings: Settings, patience: float) -> list[str]:
    """Return the names of all items, whether they are weblock's or not.

    The driver cannot read an answer of several packets to a command that it does not know.
    """
    give_up_at = time.monotonic() + patience
    while True:
        client.sock.sendall(b"lru_crawler metadump hash\r\n")
        line = b""
        with client.sock.makefile("rb") as lines:
            names: list[str] = []
            for line in lines:
                if line == b"END\r\n":
                    return names
                if not line.startswith(b"key="):
                    break
                names.append(unquote(line[4:].partition(b" ")[0].decode()))
        if not line.startswith(b"BUSY") or time.monotonic() >= give_up_at:
            raise EngineUnavailable(
                settings.name, f"it does not list its items: {line.decode():.80}"
            )
        time.sleep(0.05)
