"""What there is to know of a memcached server that keeps leases, by what ``stats`` tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...errors import EngineUnavailable
from ..findings import Finding, bytes_of, problem, time_of, unfit, warning
from .connections import Connections
from .server import Unfit
from .settings import Settings

FULL: Final = 0.9
"""The share of its memory or its connections from which a server counts as nearly full."""


def diagnose(connections: Connections, settings: Settings) -> Iterator[Finding]:
    """Return what is found on the server."""
    try:
        with connections.one() as client:
            facts = client.stats()
            may_evict = client.stats("settings").get(b"evictions") == b"on"
    except Unfit as error:
        yield unfit("reachable", error.reason, "See its log.")
        return
    except EngineUnavailable as error:
        remedy = "Start it, or check the address and the network between it and here."
        yield problem("reachable", f"It cannot be asked: {error.reason}.", remedy)
        return
    version = bytes(facts.get(b"version", b"?")).decode(errors="replace")
    yield Finding(
        "version", f"It is memcached {version}, up for {time_of(facts.get(b'uptime', 0))}."
    )
    yield _persistence(settings)
    yield _eviction(facts, may_evict=may_evict)
    yield _share("memory", facts, b"bytes", b"limit_maxbytes", "Raise -m.")
    yield _share("connections", facts, b"curr_connections", b"max_connections", "Raise -c.")


def _persistence(settings: Settings) -> Finding:
    text = "It keeps nothing on disk: a restart forgets all leases"
    if settings.recovery:
        text += f", after which it grants none for {settings.recovery:g} s (recovery)."
        return Finding("persistence", text)
    text += ", and recovery=off lets it grant them again at once, while their holders run."
    return warning("persistence", text, "Leave recovery at its default.")


def _eviction(facts: Mapping[bytes, Any], *, may_evict: bool) -> Finding:
    count = facts.get(b"evictions", 0)
    if not may_evict:
        return Finding("eviction", "It never evicts a lease (-M).")
    return warning(
        "eviction",
        f"It may evict leases when its memory is full, and has evicted {count} items so far.",
        "Start it with -M, or use a server of its own for locks.",
    )


def _share(
    subject: str, facts: Mapping[bytes, Any], used: bytes, most: bytes, remedy: str
) -> Finding:
    have, may = facts.get(used, 0), facts.get(most, 0)
    shown = bytes_of if subject == "memory" else str
    text = f"{shown(have)} of {shown(may)} are in use."
    return warning(subject, text, remedy) if may and have > FULL * may else Finding(subject, text)
