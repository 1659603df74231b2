"""One acquisition, and what it knows of the servers that it has asked."""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple

from ..._core.ports import Ask, Grasp, Message, Reply
from ..._core.table import HANDOFF, Claim
from .tally import Tally

LATEST: Final = 5.0
"""Seconds by which a request may be late that its server has not answered, beyond two ttl."""

SPLIT: Final = 0.1
"""Seconds to wait for a majority's notifications, before the waiter asks."""


class Candidate:
    """One acquisition: what it asks all servers for, and what it knows of them."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.ticket = 0
        """Its place in the order of all waiters, the same on all servers; none before it asks."""
        self.fence: int | None = None
        """What a majority has agreed on; none before that."""
        self.asked: set[int] = set()
        """The servers that may know of it."""
        self.holding: set[int] = set()
        """Those that had let it in when they last said so."""
        self.handovers = Handovers(min(claim.ttl, HANDOFF))
        self.under_way: set[object] = set()
        """Its requests that were not answered: each may still take effect."""
        self.over = False
        self.forgotten_at = 0.0
        """When all servers have forgotten it, also those that never answered."""

    def asks(self, asking: Coroutine[Any, Any, Reply]) -> Coroutine[Any, Any, Reply]:
        """Record a request, which a release has to know while it is not answered."""
        self.under_way.add(asking)
        return self._asks(asking)

    async def _asks(self, asking: Coroutine[Any, Any, Reply]) -> Reply:
        reply = await asking
        self.under_way.discard(asking)
        return reply

    def rung(self, server: int, message: Message, *, majority: int) -> Message:
        """Return the message for its waiter when a server has notified it."""
        told = self.handovers.rung(server, message, holding=self.holding, majority=majority)
        if isinstance(told, Grasp):
            self.fence = told.fence
        return told

    def asked_for(self, ttl: float, now: float) -> None:
        """Note how long servers may remember this request if no other follows."""
        self.forgotten_at = max(self.forgotten_at, now + 2 * ttl + LATEST)

    @property
    def void(self) -> float:
        """Return the seconds for which servers must reject its late requests."""
        return 2 * self.claim.ttl + LATEST


class _Clock(NamedTuple):
    """A server's time at which the asker waited there, and a local time that came before it."""

    server: float
    local: float


class _Grant(NamedTuple):
    """A server's grant: its end and its beginning by the local clock."""

    fence: int
    until: float
    since: float


class Handovers:
    """Which servers have notified the waiter, and whether a majority has made the same grant.

    If a majority has, the waiter need not ask. A notification may be late, and its grant released
    since. So it counts only if the grant was made after the server last told the asker to wait, and
    only until the asker asks again. Notifications arrive from other threads.
    """

    def __init__(self, length: float) -> None:
        self._length = length
        self._guard = threading.Lock()  # Nothing waits while it is held.
        self._rung: set[int] = set()
        self._clocks: dict[int, _Clock] = {}
        self._grants: dict[int, _Grant] = {}

    def asking(self, server: int) -> None:
        """Forget the server's notification: its answer to the new request replaces it."""
        with self._guard:
            self._rung.discard(server)
            self._clocks.pop(server, None)
            self._grants.pop(server, None)

    def told(self, tally: Tally) -> None:
        """Record the server's answer that the asker waits there."""
        with self._guard:
            for server in tally.waiting:
                self._clocks[server] = _Clock(tally.time_of(server), tally.sent)

    def reminded(self, tally: Tally) -> None:
        """Record that the asker still waits there, unless it has asked for more since."""
        with self._guard:
            for server in tally.waiting:
                clock = _Clock(tally.time_of(server), tally.sent)
                if clock > self._clocks.get(server, clock):
                    self._clocks[server] = clock

    def rung(self, server: int, message: Message, *, holding: set[int], majority: int) -> Message:
        """Return the message for the waiter now."""
        with self._guard:
            self._rung.add(server)
            if isinstance(message, Grasp):
                self._note(server, message)
            told = self._agreed(majority)
            if told is None and len(self._rung | holding) < majority:
                return Ask(after=SPLIT)
            self._rung.clear()
            return told or Ask()

    def _note(self, server: int, grasp: Grasp) -> None:
        clock = self._clocks.get(server)
        if clock and grasp.until - self._length > clock.server:
            until = clock.local + grasp.until - clock.server
            self._grants[server] = _Grant(grasp.fence, until, clock.local)

    def _agreed(self, majority: int) -> Grasp | None:
        for fence in {grant.fence for grant in self._grants.values()}:
            alike = [grant for grant in self._grants.values() if grant.fence == fence]
            if len(alike) >= majority:
                self._grants.clear()
                until = sorted((grant.until for grant in alike), reverse=True)[majority - 1]
                return Grasp(fence, until, min(grant.since for grant in alike))
        return None
