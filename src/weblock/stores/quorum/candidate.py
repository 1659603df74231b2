"""One acquisition, and what is known of it on each server."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final, NamedTuple

from ..._core.ports import Ask, Grasp, Message, Reply
from ..._core.table import HANDOFF, Claim, Waiting
from .tally import Tally

LATEST: Final = 5.0
"""Seconds by which a request may be late that its server has not answered, beyond two ttl."""

SPLIT: Final = 0.1
"""Seconds to wait for a majority's notifications, before the waiter asks."""


class _Clock(NamedTuple):
    """A server's time at which the asker waited there, and a local time that came before it."""

    server: float
    local: float


class _Grant(NamedTuple):
    """A server's grant: its end and its beginning by the local clock."""

    fence: int
    until: float
    since: float


class Candidate:
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
        self.holding: set[int] = set()
        """The servers that had let it in when they last said so."""
        self.under_way: set[tuple[object, int]] = set()
        """Its requests that were not answered, each to one server. They may still take effect."""
        self.over = False
        self.forgotten_at = 0.0
        """When all servers have forgotten it, also those that never answered."""
        # Notifications arrive from other threads. Nothing waits while this is held.
        self._guard = threading.Lock()
        self._rung: set[int] = set()
        self._clocks: dict[int, _Clock] = {}
        self._grants: dict[int, _Grant] = {}

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
                self._rung.discard(server)
                self._clocks.pop(server, None)
                self._grants.pop(server, None)

    def waits(self, tally: Tally, *, still: bool = False) -> None:
        """Record the servers where it waits, or ``still`` waits unless it has asked anew since."""
        with self._guard:
            for server in tally.answers(Waiting):
                reply = tally.replies[server]
                assert isinstance(reply, Reply)
                clock = _Clock(reply.now, tally.sent)
                if not still or clock > self._clocks.get(server, clock):
                    self._clocks[server] = clock

    def rung(self, server: int, message: Message, *, majority: int) -> Message:
        """Return the message for its waiter when a server has notified it."""
        with self._guard:
            self._rung.add(server)
            clock = self._clocks.get(server)
            if isinstance(message, Grasp) and clock:
                since = message.until - min(self.claim.ttl, HANDOFF)
                if since > clock.server:
                    until = clock.local + message.until - clock.server
                    self._grants[server] = _Grant(message.fence, until, clock.local)
            told = self._agreed(majority)
            if told is None and len(self._rung | self.holding) < majority:
                return Ask(after=SPLIT)
            self._rung.clear()
        if told:
            self.fence = told.fence
        return told or Ask()

    def _agreed(self, majority: int) -> Grasp | None:
        """Return the grant that a majority has made."""
        for fence in {grant.fence for grant in self._grants.values()}:
            alike = [grant for grant in self._grants.values() if grant.fence == fence]
            if len(alike) >= majority:
                self._grants.clear()
                until = sorted((grant.until for grant in alike), reverse=True)[majority - 1]
                return Grasp(fence, until, min(grant.since for grant in alike))
        return None
