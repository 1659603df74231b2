"""What one process has of a server: its connections, its threads, and those of its callers that wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Final, TypeVar

from ..._core.ports import Runtime, Store
from ..._platform.threads import in_thread
from ...errors import ConfigurationError, EngineUnavailable
from ..cells import CellStore
from ..findings import Finding, unreachable
from ..transport.engine import ServerEngine
from ..transport.pool import Pool
from ..transport.unfit import Silence, explained
from . import Settings
from .items import ItemCells, Observer
from .poller import Poller
from .server import FAILURES, MEANINGS, Client, admitted, examine

THREADS: Final = 16
"""Threads that ask for the event loops of this process, at most: the driver blocks."""

R = TypeVar("R")


class MemcachedEngine(ServerEngine):
    """The leases on one server, as this process sees them."""

    settings: Settings

    def after_fork(self) -> None:
        """Begin with nothing open, as a process that has written nothing and seen nothing."""
        super().after_fork()
        settings = self.settings
        self._explained = partial(explained, meanings=MEANINGS, timeout=settings.timeout)
        self.observer = Observer()
        self.renewing = set[str]()
        self.pool = Pool(
            partial(admitted, settings),
            Silence(
                self._explained,
                timeout=settings.timeout,
                answers=(EngineUnavailable, ConfigurationError),
            ),
            room=settings.max_connections,
            patience=settings.timeout,
        )
        self.poller = Poller(self)
        self._closed = False
        self._threads = ThreadPoolExecutor(THREADS, "weblock-memcached")

    def connect(self, runtime: Runtime) -> Store:
        self.poller.cells = cells = ItemCells(self, runtime)
        return CellStore(cells, self.poller)

    def ask(self, work: Callable[[Client], R], *, first: bool = False) -> R:
        """Do something with a connection; ``first`` is for the keeper. Raises ``EngineUnavailable``."""
        try:
            return self.pool.use_first(work) if first else self.pool.use(work)
        except FAILURES as error:
            raise EngineUnavailable(self.name, self._explained(error)) from error

    def ask_in_thread(self, work: Callable[[Client], R]) -> Awaitable[R]:
        """Do the same for an event loop."""
        try:
            return in_thread(self._threads, partial(self.ask, work))
        except RuntimeError as error:
            reason = "it was closed" if self._closed else f"no thread could be started: {error}"
            raise EngineUnavailable(self.name, reason) from error

    def diagnose(self) -> Iterable[Finding]:
        """Return what there is to know of the server."""
        try:
            with closing(Client(self.settings)) as client:
                yield from examine(client, self.settings)
        except FAILURES as error:
            yield unreachable(error, self._explained(error))

    def close(self) -> None:
        self._closed = True
        self.poller.close()
        self._threads.shutdown(wait=False)
        self.pool.close()
        super().close()
