"""A thread that polls for the waiters of this process, because memcached cannot notify them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from ..._core.ports import Ask, Runtime
from ..._platform.threads import BackgroundThread
from ...errors import EngineUnavailable
from .format import Reading
from .items import PORTION, Items

if TYPE_CHECKING:
    from . import MemcachedEngine

FIRST_LOOK: Final = 0.003
LONGEST_LOOK: Final = 0.25
"""Seconds between two reads of a key that others hold, while a caller here waits for it."""

ATTENTION: Final = 3.0
"""Seconds for which a key is polled after a waiter's last heartbeat."""


class _Watch:
    """A key that a caller here waits for."""

    def __init__(self, due: float) -> None:
        self.due = due
        self.until = 0.0
        self.pause = FIRST_LOOK
        self.fence = 0


class Lookout:
    """Notifies waiters of this process whose turn has come, whichever process released.

    A key that often changes hands is read often. A key that is held for long is read seldom, and so
    is one for which many waiters are in front of the first one here.
    """

    def __init__(self, engine: MemcachedEngine) -> None:
        self._engine = engine
        self._closed = False
        self._runtime: Runtime | None = None
        self._thread = BackgroundThread("weblock-lookout", self._look_out)
        self._changed = threading.Condition()
        self._watches: dict[str, _Watch] = {}

    def attend(self, key: str, runtime: Runtime) -> None:
        """Poll a key from now on, until no caller waits for it."""
        now = runtime.now()
        with self._changed:
            if self._closed:
                return
            if key not in self._watches:
                self._watches[key] = _Watch(now + FIRST_LOOK)
                self._changed.notify()
            self._watches[key].until = now + ATTENTION
        self._runtime = runtime
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(1)

    def _look_out(self) -> None:
        runtime = self._runtime
        assert runtime is not None
        items = Items(self._engine, runtime)
        while due := self._wait_for_due(runtime):
            try:
                readings = items.read(list(due))
            except EngineUnavailable:
                readings = {}
            with self._changed:
                for key, until in due.items():
                    self._plan(key, readings.get(key), until, runtime)

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

    def _plan(self, key: str, reading: Reading | None, until: float, runtime: Runtime) -> None:
        """Notify the waiter that has the key, and return when to poll again."""
        watch, now = self._watches[key], runtime.now()
        pause: float | None = LONGEST_LOOK
        if reading:
            self._ring_new_holders(watch, reading)
            pause = self._pause(watch, reading, until)
        if pause is None or now >= watch.until:
            del self._watches[key]
        else:
            watch.due = now + pause * (0.75 + runtime.jitter() / 2)

    def _ring_new_holders(self, watch: _Watch, reading: Reading) -> None:
        new = [grant for grant in reading.state.grants if grant.fence > watch.fence]
        if not new:
            return
        watch.fence, watch.pause = new[-1].fence, FIRST_LOOK
        for grant in new:
            if grant.claim.process == self._engine.observer.process and not grant.confirmed:
                self._engine.switchboard.ring(grant.claim.owner, Ask())

    def _pause(self, watch: _Watch, reading: Reading, until: float) -> float | None:
        """Return the seconds until the next poll; ``None`` if no caller here waits."""
        processes = [place.claim.process for place in reading.state.queue]
        ours = self._engine.observer.process
        ahead = processes.index(ours) if ours in processes else 0
        if ours not in processes and watch.until == until:  # Nor joined since it was looked at.
            return None
        pause = min(LONGEST_LOOK, watch.pause * (1 + ahead))
        watch.pause = min(LONGEST_LOOK, 1.5 * watch.pause)
        return pause
