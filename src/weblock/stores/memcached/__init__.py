"""``memcached://``: leases on one memcached. A key is an item, which is replaced as a whole.

``items`` reads and replaces them, as ``format`` writes them; ``stamps`` says what times of other
machines mean; ``lookout`` polls for waiters, because memcached cannot notify them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..._core.ports import Ask, Runtime, Store, Switchboard
from ..._platform.forks import heed_forks
from ..._requirements import require
from ..cells import CellStore, Renewing
from ..findings import Finding
from ..url import without_secrets
from .cells import ItemCells, LookoutBells
from .connections import Connections
from .lookout import Lookout
from .settings import Settings, parse
from .stamps import Observer
from .threads import Threads

__all__ = ["MemcachedEngine", "open_engine"]

PATIENCE: Final = 5.0
"""Seconds of losing races for one key to other callers, before that is an error."""

BEAT_PATIENCE: Final = 1.0
"""Patience of heartbeats: the next comes soon."""


def open_engine(url: str) -> MemcachedEngine:
    """Return the engine of ``memcached://host:port``, which connects when it is first used.

    Raises ``ConfigurationError``.
    """
    require(without_secrets(url), "memcached")
    return MemcachedEngine(parse(url))


class MemcachedEngine:
    """The leases on one server, as this process sees them."""

    scope = "cluster"
    limits = "any"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.name
        self.recovery = settings.recovery
        self.after_fork()
        heed_forks(self)

    def after_fork(self) -> None:
        """Begin with nothing open, as a process that has written nothing and seen nothing."""
        self.switchboard = Switchboard()
        self.observer = Observer()
        self.renewing = Renewing()
        self.connections = Connections(self.settings)
        self.threads = Threads(self.name)
        self.lookout = Lookout(self)

    def connect(self, runtime: Runtime) -> Store:
        cells, bells = ItemCells(self, runtime), LookoutBells(self, runtime)
        return CellStore(cells, bells, patience=PATIENCE, beat_patience=BEAT_PATIENCE)

    def diagnose(self) -> Iterable[Finding]:
        """Return what there is to know of the server."""
        from .diagnosis import diagnose

        return diagnose(self.connections, self.settings)

    def close(self) -> None:
        """Close the engine. Callers that still wait here are notified."""
        self.lookout.close()
        self.threads.close()
        self.connections.close()
        self.switchboard.ring_all(Ask())
