"""Times that others wrote, which are on their own clocks, and what they mean on ours.

Memcached has no clock that a lease could rely on, so there is no clock that all share. The writer
of a lease says how long it is to last. Its holder counts that from before the write, and every
other process from when it first saw it, each on a monotonic clock of its own: so the holder's
deadline comes first, whatever the machines' clocks say.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

KNOWN: Final = 10_000
"""How many items are remembered with the time when their stamps were first seen."""


class Stamp(NamedTuple):
    """The writer of something about an owner, when it wrote, and until when it lasts, by its own clock.

    A lease is recognized by the stamp of its last renewal, which others copy as it is.
    """

    owner: str
    writer: str
    written: float
    until: float

    def shift(self, seen: Seen) -> float:
        """Return the difference between its writer's clock and ours; 0 for our own."""
        return seen[self] - self.written if self in seen else 0.0


Seen = Mapping[Stamp, float]
"""When what others have written was first seen here."""


class Observer:
    """This process: as a writer, and as an observer of what others write."""

    def __init__(self) -> None:
        self.process = secrets.token_hex(8)
        # A finalizer that releases a lease may run inside, and then waits for nobody.
        self._guard = threading.RLock()
        self._by_item: OrderedDict[str, dict[Stamp, float]] = OrderedDict()

    def first_seen(self, item: str, stamps: Iterable[Stamp], now: float) -> Seen:
        """When each stamp in an item was first seen: before now, or now. Others are forgotten.

        Whatever is forgotten too early is counted anew, which only makes us wait for longer.
        """
        theirs = [stamp for stamp in stamps if stamp.writer != self.process]
        with self._guard:
            known = self._by_item.pop(item, {})
            seen = {stamp: known.get(stamp, now) for stamp in theirs}
            if seen:
                self._by_item[item] = seen
            while len(self._by_item) > KNOWN:
                self._by_item.popitem(last=False)
        return seen
