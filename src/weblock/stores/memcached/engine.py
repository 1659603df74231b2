"""What one process has of a server: its connections, its threads, and those of its callers that wait."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from ..._core.ports import CheckAgain, Runtime, Store
from ..._platform.threads import BackgroundThread, in_thread
from ...errors import ConfigurationError, EngineUnavailable
from ..cells import PORTION, CellStore, LocalNotifier
from ..findings import Finding, unreachable
from ..transport.failures import Silence, explained
from ..transport.pool import Pool
from ..transport.settings import ServerEngine
from . import Settings
from .items import Item, ItemCells, Observer
from .server import FAILURES, MEANINGS, Client, admitted, examine

THREADS: Final = 16
"""Threads that ask for the event loops of this process, at most: the driver blocks."""

FIRST_PAUSE: Final = 0.003
LONGEST_PAUSE: Final = 0.25
"""Seconds between two reads of a key that others hold, while a caller here waits for it."""

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


@dataclass
class _Watch:
    """A key that callers here wait for."""

    due: float
    owners: set[str] = field(default_factory=set)
    pause: float = FIRST_PAUSE
    fence: int = 0


class Poller(LocalNotifier):
    """The notifier of memcached: a thread that polls, because memcached cannot notify. It notifies waiters of this process, whichever process has released.

    A key that often changes hands is read often. A key that is held for long is read seldom, and so
    is one for which many waiters are in front of the first one here.
    """

    def __init__(self, engine: MemcachedEngine) -> None:
        super().__init__(engine.switchboard)
        self._engine = engine
        self.process = engine.observer.process
        self.cells: ItemCells | None = None
        """The cells of any store, which read the items."""
        self._closed = False
        self._thread = BackgroundThread("weblock-poller", self._poll)
        self._changed = threading.Condition()
        self._watches: dict[str, _Watch] = {}

    def watch(self, key: str, owner: str, ahead: Iterable[str], *, first: bool) -> None:
        assert self.cells
        with self._changed:
            if self._closed:
                return
            if key not in self._watches:
                self._watches[key] = _Watch(self.cells.runtime.now() + FIRST_PAUSE)
                self._changed.notify()
            self._watches[key].owners.add(owner)
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(1)

    def _poll(self) -> None:
        assert self.cells
        runtime, read = self.cells.runtime, self.cells.read
        while due := self._wait_for_due(runtime):
            try:
                items = self._engine.ask(partial(read, keys=due)).items
            except EngineUnavailable:
                items = {}
            with self._changed:
                for key in due:
                    self._plan(key, items.get(key), runtime)

    def _wait_for_due(self, runtime: Runtime) -> list[str]:
        """Return the keys to poll now; none at the end."""
        with self._changed:
            while not self._closed:
                now = runtime.now()
                due = [key for key, watch in list(self._watches.items()) if watch.due <= now]
                if due:
                    return due[:PORTION]
                next_at = min((watch.due for watch in list(self._watches.values())), default=None)
                self._changed.wait(None if next_at is None else next_at - now)
        return []

    def _plan(self, key: str, item: object, runtime: Runtime) -> None:
        """Notify the waiters here that have got the key, and plan when to look again, if any are left."""
        watch, mailboxes, pause = (
            self._watches[key],
            self._engine.switchboard.mailboxes,
            LONGEST_PAUSE,
        )
        watch.owners = {owner for owner in list(watch.owners) if owner in mailboxes}
        if not watch.owners:
            del self._watches[key]
            return
        if isinstance(item, Item):
            new = [grant for grant in item.state.grants if grant.fence > watch.fence]
            if new:
                watch.fence, watch.pause = new[-1].fence, FIRST_PAUSE
            for grant in new:
                if grant.claim.owner in watch.owners and not grant.confirmed:
                    self._engine.switchboard.notify(grant.claim.owner, CheckAgain())
            processes = [place.claim.process for place in item.state.queue]
            ahead = processes.index(self.process) if self.process in processes else 0
            pause = min(LONGEST_PAUSE, watch.pause * (1 + ahead))
            watch.pause = min(LONGEST_PAUSE, 1.5 * watch.pause)
        watch.due = runtime.now() + pause * (0.75 + runtime.jitter() / 2)
