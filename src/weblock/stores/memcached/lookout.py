"""A thread that polls for the waiters of this process, because memcached cannot notify them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from ..._core.ports import Ask, Grasp, Runtime
from ..._platform.threads import BackgroundThread
from ...errors import EngineUnavailable
from .items import PORTION, Item, ItemCells

if TYPE_CHECKING:
    from .engine import MemcachedEngine

FIRST_LOOK: Final = 0.003
LONGEST_LOOK: Final = 0.25
"""Seconds between two reads of a key that others hold, while a caller here waits for it."""

ATTENTION: Final = 3.0
"""Seconds for which a key is polled after a waiter's last heartbeat."""


@dataclass
class _Watch:
    """A key that a caller here waits for."""

    due: float
    until: float = 0.0
    pause: float = FIRST_LOOK
    fence: int = 0


class Lookout:
    """The bells of memcached. It notifies waiters of this process, whichever process has released.

    A key that often changes hands is read often. A key that is held for long is read seldom, and so
    is one for which many waiters are in front of the first one here.
    """

    def __init__(self, engine: MemcachedEngine) -> None:
        self._engine = engine
        self.process = engine.observer.process
        self.runtime: Runtime | None = None
        """The runtime of any store, for its clock."""
        self._closed = False
        self._thread = BackgroundThread("weblock-lookout", self._look_out)
        self._changed = threading.Condition()
        self._watches: dict[str, _Watch] = {}

    def ring(self, process: str, owner: str, grasp: Grasp) -> None:
        if process == self.process:
            self._engine.switchboard.ring(owner, grasp)

    def watch(self, key: str, owner: str, ahead: Sequence[str], *, first: bool) -> None:
        """Poll a key from now on, until no caller waits for it."""
        assert self.runtime
        now = self.runtime.now()
        with self._changed:
            if self._closed:
                return
            if key not in self._watches:
                self._watches[key] = _Watch(now + FIRST_LOOK)
                self._changed.notify()
            self._watches[key].until = now + ATTENTION
        self._thread.start()

    def close_up(self, process: str, owner: str) -> None:
        pass  # The thread sees whatever happens to the key.

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(1)

    def _look_out(self) -> None:
        assert self.runtime
        runtime, cells = self.runtime, ItemCells(self._engine, self.runtime)
        while due := self._wait_for_due(runtime):
            try:
                items = self._engine.ask(partial(cells.read, keys=list(due))).items
            except EngineUnavailable:
                items = {}
            with self._changed:
                for key, until in due.items():
                    self._plan(key, items.get(key), until, runtime)

    def _wait_for_due(self, runtime: Runtime) -> dict[str, float]:
        """Return the keys to poll now, and until when; none at the end."""
        with self._changed:
            while not self._closed:
                now = runtime.now()
                watches = self._watches.items()
                due = [(key, watch.until) for key, watch in watches if watch.due <= now]
                if due:
                    return dict(due[:PORTION])
                next_at = min((watch.due for watch in self._watches.values()), default=None)
                self._changed.wait(None if next_at is None else next_at - now)
        return {}

    def _plan(self, key: str, item: object, until: float, runtime: Runtime) -> None:
        """Notify the waiters here that have got the key, and plan when to look again."""
        watch, now, pause = self._watches[key], runtime.now(), LONGEST_LOOK
        if isinstance(item, Item):
            new = [grant for grant in item.state.grants if grant.fence > watch.fence]
            if new:
                watch.fence, watch.pause = new[-1].fence, FIRST_LOOK
            for grant in new:
                if grant.claim.process == self.process and not grant.confirmed:
                    self._engine.switchboard.ring(grant.claim.owner, Ask())
            processes = [place.claim.process for place in item.state.queue]
            ours = self.process in processes
            if not ours and watch.until == until:  # Nor joined since it was looked at.
                del self._watches[key]
                return
            ahead = processes.index(self.process) if ours else 0
            pause = min(LONGEST_LOOK, watch.pause * (1 + ahead))
            watch.pause = min(LONGEST_LOOK, 1.5 * watch.pause)
        if now >= watch.until:
            del self._watches[key]
        else:
            watch.due = now + pause * (0.75 + runtime.jitter() / 2)
