"""A process's memory of an ensemble: its own leases, and when it first saw what."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Container, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

_REMEMBERED: Final = 10_000


class Own(NamedTuple):
    """A lease of this process: its earliest end, its holder's label, and its limit."""

    until: float
    label: str
    limit: int
    fence: int | None = None
    """Its fence, if that is not the number of the transaction that created its node."""
    asked: bool = False
    """Whether another caller has asked for its release."""


class Memory:
    """What a process remembers. To forget it costs a request or some time. Any thread may use it."""

    def __init__(self) -> None:
        self.sending = threading.RLock()
        """Held while a request is decided on and sent, where another thread's must not come between.

        The collector of garbage may end a generator there, which releases its own lease in the same thread.
        """
        self.leases: dict[str, Own] = {}
        """What this process holds, by owner."""
        self.asked: set[str] = set()
        """Owners who may have something there, be it that an answer was lost."""
        self.acquiring: set[str] = set()
        """Owners whose acquisition is under way. One that is released meanwhile is removed."""
        self.watched: set[tuple[str, str]] = set()
        """Nodes, and the owners who are to be rung when something happens to them."""
        self._seen: OrderedDict[Hashable, float] = OrderedDict()

    def first_seen(self, what: Hashable, now: float) -> float:
        """Return when this process first saw ``what``: now, or earlier.

        Leases are timed from then on: a lease whose node stays unchanged for its ttl was not renewed
        in that time, whatever clocks its holder and the servers have.
        """
        seen = self._seen.setdefault(what, now)
        with suppress(KeyError):  # Another thread has dropped it just now.
            self._seen.move_to_end(what)  # What is looked at again and again is dropped last.
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return seen

    def ended(self, what: Hashable) -> None:
        """Record that ``what`` has ended, as if it had always been seen."""
        self._seen[what] = float("-inf")

    @contextmanager
    def acquires(self, owner: str) -> Iterator[None]:
        """Note that an acquisition is under way, of which a release is the end."""
        self.acquiring.add(owner)
        try:
            yield
        finally:
            if owner in self.acquiring:
                self.acquiring.discard(owner)
            else:
                self.forget(owner)

    def release(self, owner: str) -> None:
        """Forget an owner, for whom nothing is made any more."""
        with self.sending:
            self.acquiring.discard(owner)
            self.forget(owner)

    def forget(self, owner: str) -> None:
        self.leases.pop(owner, None)
        self.asked.discard(owner)

    def forget_ended(self, now: float, waiting: Container[str]) -> None:
        """Forget leases that were never released, and their owners but for those that are ``waiting``.

        An acquisition may have had a lease without knowing it, and go on waiting.
        """
        for owner, own in tuple(self.leases.items()):
            if own.until <= now:
                self.leases.pop(owner, None)
                if owner not in waiting:
                    self.asked.discard(owner)
