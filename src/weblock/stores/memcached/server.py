"""Checks of the server: is it fit for locks, has it lost data, what does it keep."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from ...errors import EngineUnavailable
from .settings import Settings

if TYPE_CHECKING:
    from .connections import Client
    from .format import Names

UPTIME_AHEAD: Final = 3.0
"""Seconds by which a server may overstate its uptime."""


def refuse_unfit(client: Client, settings: Settings) -> None:
    """Raise ``EngineUnavailable`` if the server may evict leases, or has no ``cas``."""
    stats = client.stats("settings")
    if stats.get(b"cas_enabled") in (b"no", False, 0):
        raise EngineUnavailable(
            settings.name, "it was started with -C, and locks need cas: start it without"
        )
    if stats.get(b"evictions") == b"on" and not settings.allow_eviction:
        raise EngineUnavailable(
            settings.name,
            "it may throw leases away when its memory is full: start it with -M, use a server"
            " of its own for locks, or accept lost leases with ?allow_eviction=true",
        )


def leave_mark(client: Client, names: Names, recovery: float) -> None:
    """Mark a server without a mark: it is new to us, or has lost its data.

    Where leases may have been among that, it is to be quiet, and grant none, until they have ended.
    """
    quiet = recovery
    if quiet:
        stats = client.stats()
        if stats.get(b"cmd_flush") == stats.get(b"evictions") == 0:
            quiet = min(quiet, quiet - stats.get(b"uptime", 0) + UPTIME_AHEAD)
    if quiet > 0:
        client.add(names.quiet, b"1", math.ceil(quiet) + 1, noreply=False)
    client.add(names.mark, b"1", noreply=False)


def items_on(client: Client, settings: Settings, patience: float) -> list[str]:
    """Return the names of all items, ours or not.

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
