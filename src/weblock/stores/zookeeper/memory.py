"""What a process remembers of an ensemble: what it has there, and since when it has seen what."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, NamedTuple

_REMEMBERED: Final = 10_000


class Own(NamedTuple):
    """A lease of this process: until when it has it at least, and what others see of its holder."""

    until: float
    label: str


class Memory:
    """All of it may be forgotten: that costs a question, or some time. Any thread may use it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets everything, in a forked child: it has nothing there yet."""
        self.renewing = threading.Lock()
        self.leases: dict[str, Own] = {}
        """What this process holds, by owner."""
        self.asked: set[str] = set()
        """Owners who may have something there, be it that an answer was lost."""
        self.watched: set[tuple[str, str]] = set()
        """Nodes, and the owners who are to be rung when something happens to them."""
        self._seen: OrderedDict[Hashable, float] = OrderedDict()

    def first_seen(self, what: Hashable, now: float) -> float:
        """When this process saw ``what`` for the first time: now, or earlier.

        That is what a lease is timed by: one that has stood there unchanged for its ttl was not
        renewed in its ttl, whatever clocks its holder and the servers have.
        """
        seen = self._seen.setdefault(what, now)
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return seen

    def ended(self, what: Hashable) -> None:
        """Count ``what`` as seen since forever."""
        self._seen[what] = float("-inf")

    def forget(self, owner: str) -> None:
        self.leases.pop(owner, None)
        self.asked.discard(owner)

    def forget_ended(self, now: float) -> None:
        """Forgets leases that were never given back."""
        for owner, own in tuple(self.leases.items()):
            if own.until <= now:
                self.forget(owner)
