"""One acquisition, and what is known of it on each server."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from ..._core.ports import CheckAgain, Granted, Message
from ..._core.table import HANDOFF, Claim, Waiting
from .votes import Votes

LATEST: Final = 5.0
"""Seconds by which a request may be late that its server has not answered, beyond two ttl."""

SPLIT: Final = 0.1
"""Seconds to wait for a majority's notifications, before the waiter asks."""


class Acquisition:
    """One acquisition: what it asks all servers for, and what it knows of them.

    If a majority has notified the waiter of the same grant, the waiter need not ask. A notification
    may be late, and its grant released since. So it counts only if the grant was made after the
    server last told the asker to wait, and only until the asker asks again.
    """

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.ticket = 0
        """Its place in the order of all waiters, the same on all servers; none before it asks."""
        self.fence: int | None = None
        """What a majority has agreed on; none before that."""
        self.asked: set[int] = set()
        """The servers that may know of it."""
        self.under_way: set[tuple[object, int]] = set()
        """Its requests that were not answered, each to one server. They may still take effect."""
        self.over = False
        self.forgotten_at = 0.0
        """When all servers have forgotten it, also those that never answered."""
        # Notifications arrive from other threads. Nothing waits while this is held.
        self._guard = threading.Lock()
        self._notified: set[int] = set()
        self._waits: dict[int, tuple[float, float]] = {}
        """A time of each server at which the asker waited there, and a local time before it."""
        self._grants: dict[int, Granted] = {}
        """What a server has notified it of, by the local clock."""

    @property
    def void(self) -> float:
        """Return the seconds for which servers must reject its late requests."""
        return 2 * self.claim.ttl + LATEST

    def asked_for(self, ttl: float, now: float) -> None:
        """Note how long servers may remember this request if no other follows."""
        self.forgotten_at = max(self.forgotten_at, now + 2 * ttl + LATEST)

    def asks(self, servers: Iterable[int]) -> None:
        """Forget the servers' notifications: their answers to a new request replace them."""
        self.asked.update(servers)
        with self._guard:
            for server in servers:
                self._notified.discard(server)
                self._waits.pop(server, None)
                self._grants.pop(server, None)

    def waits(self, votes: Votes, *, still: bool = False) -> None:
        """Record the servers where it waits, or ``still`` waits unless it has asked anew since."""
        with self._guard:
            for server in votes.answers(Waiting):
                time = votes.replies[server].now, votes.sent
                if not still or time > self._waits.get(server, time):
                    self._waits[server] = time

    def notified(self, server: int, message: Message, *, majority: int) -> Message:
        """Return the message for its waiter when a server has notified it."""
        with self._guard:
            self._notified.add(server)
            if isinstance(message, Granted) and (waits := self._waits.get(server)):
                time, local = waits
                if message.until - min(self.claim.ttl, HANDOFF) > time:
                    until = local + message.until - time
                    self._grants[server] = Granted(message.fence, until, local)
            for fence in {grant.fence for grant in list(self._grants.values())}:
                alike = [grant for grant in list(self._grants.values()) if grant.fence == fence]
                if len(alike) >= majority:
                    self._notified.clear()
                    self._grants.clear()
                    self.fence = fence
                    until = sorted((grant.until for grant in alike), reverse=True)[majority - 1]
                    return Granted(fence, until, min(grant.since or 0.0 for grant in alike))
            if len(self._notified) < majority:
                return CheckAgain(after=SPLIT)
            self._notified.clear()
        return CheckAgain()
