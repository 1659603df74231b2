"""One acquisition, what is known of it on each server, and what the replies of several servers amount to.

A server's clock says how long a lease has left there, and nothing else. All returned times are on
the asker's own clock, counted from before the first request was sent.

A server that recovers from a loss of its data answers a claim with ``Waiting`` or ``Busy``, also if
it knows the claim's lease: it might have forgotten a later one. So it has no vote for a grant.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from ..._core.ports import CheckAgain, Granted, Message, Reply
from ..._core.table import HANDOFF, Answer, Busy, Claim, Gone, Held, Released, Waiting
from ..._platform.logs import logger
from ...errors import EngineUnavailable

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
        self.asked: Counter[int] = Counter()
        """How many requests each server was sent. These servers may know of it."""
        self.under_way: set[tuple[object, int]] = set()
        """Its requests that were not answered, each to one server. They may still take effect."""
        self.over = False
        """Whether it is released. Nothing is sent for it any more."""
        self.forgotten_at = 0.0
        """When all servers have forgotten it, also those that never answered."""
        # Notifications arrive from other threads. Nothing waits while this is held.
        self._guard = threading.Lock()
        self._notified: set[int] = set()
        self._waits: dict[int, tuple[float, float]] = {}
        """A time of each server at which the asker waited there, and a local time before it."""
        self._grants: dict[int, Granted] = {}
        """What a server has notified it of, by the local clock."""

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

    def may_repeat(self) -> bool:
        """Note that one of the requests is sent once more, and return whether it still may be."""
        self.asked.update(list(self.asked))  # Each of the servers may be the one.
        return not self.over

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


A = TypeVar("A", bound=Answer)

APART: Final = 5.0
"""Seconds by which clocks may differ: half of what a server that has lost its data takes to recover."""


class Votes:
    """The replies of ``servers`` servers to one question, which was sent at ``sent``.

    They are by number; one of a server that was not asked, or has not answered yet, is missing.
    """

    def __init__(self, servers: int, sent: float, replies: Mapping[int, Any]) -> None:
        self.servers = servers
        self.majority = servers // 2 + 1
        self.sent = sent
        self.replies = replies
        self._answers: dict[type, dict[int, Any]] = {}
        for server, reply in replies.items():
            if isinstance(reply, Reply):
                self._answers.setdefault(type(reply.answer), {})[server] = reply.answer

    def part(self, index: int) -> Votes:
        """Return the replies to one of several questions that were sent together."""
        failed, replies = EngineUnavailable, self.replies.items()
        parts = {server: r if isinstance(r, failed) else r[index] for server, r in replies}
        return Votes(self.servers, self.sent, parts)

    @property
    def silent(self) -> list[int]:
        """The servers that were asked and gave no answer."""
        replies = self.replies.items()
        return [server for server, reply in replies if isinstance(reply, EngineUnavailable)]

    @property
    def answered(self) -> int:
        return len(self.replies) - len(self.silent)

    def answers(self, kind: type[A]) -> dict[int, A]:
        """Return the answers of one kind, by server."""
        return self._answers.get(kind, {})

    @property
    def granted(self) -> bool:
        return len(self._answers.get(Held, ())) >= self.majority

    def outcome(self) -> Reply | None:
        """The majority's answer; ``None`` if there is none, because too few have answered."""
        if self.granted:
            return self._kept(max(held.fence for held in self.answers(Held).values()))
        if self.answered < self.majority:
            return None
        if self.answers(Gone):
            return Reply(Gone(), self.sent)
        busy, waiting = self.answers(Busy).values(), self.answers(Waiting).values()
        others = busy or waiting
        ends = sorted([*self._ends(Waiting), *self._ends(Busy)])
        # When enough of the leases of others may have ended.
        until = ends[min(self.majority - len(self.answers(Held)), len(ends)) - 1]
        # So many servers may grant nothing that no majority is left.
        refusals: list[Busy | Waiting] = [*busy, *waiting]
        reasons = [each.recovering for each in refusals if each.recovering]
        recovering = ""
        if self.servers - len(reasons) < self.majority:
            recovering = f"of {len(reasons)} of its {self.servers} servers, {reasons[0]}"
        # Their holder's label and the number of others, by the server that knows of most.
        holders = max(each.holder for each in others), max(each.others for each in others)
        if busy:
            most = max(each.waiters for each in busy)
            return Reply(Busy(until, most, False, recovering, *holders), self.sent)  # noqa: FBT003
        position = max(each.position for each in waiting)
        return Reply(Waiting(position, until, recovering, *holders), self.sent)

    def heartbeat(self, fence: int | None) -> Reply | None:
        """The majority's answer to a heartbeat; ``None`` while it is not known.

        ``fence`` is what a majority has agreed on: others may have given larger ones on their own.
        ``Gone`` for a waiter to which any server has granted the key: it must ask, to agree on a
        fence with a majority, or to release what others have a better claim to.
        """
        holding, waiting = len(self.answers(Held)), len(self.answers(Waiting))
        if holding and not fence:
            return Reply(Gone(), self.sent)
        if self.granted:
            return self._kept(fence or 0)
        if waiting >= self.majority:
            return self.outcome()
        unknown = self.servers - self.answered
        if unknown and holding + waiting + unknown >= self.majority:
            return None
        return Reply(Gone(), self.sent)

    def released(self) -> Reply | None:
        """The majority's answer to a release; ``None`` while it is not known."""
        released = len(self.answers(Released))
        if released >= self.majority:
            return Reply(Released(), self.sent)
        unknown = self.servers - self.answered
        return None if released + unknown >= self.majority else Reply(Gone(), self.sent)

    def _kept(self, fence: int) -> Reply:
        """Return the lease that a majority keeps. Any server may say that its release was asked for."""
        until = sorted(self._ends(Held), reverse=True)[self.majority - 1]
        asked = True in [held.asked for held in self.answers(Held).values()]
        return Reply(Held(fence, until, asked=asked), self.sent)

    def _ends(self, kind: type[Held | Waiting | Busy]) -> list[float]:
        """Return when the leases end, if the server's clock runs as ours does."""
        answers = self.answers(kind).items()
        return [self.sent + answer.until - self.replies[server].now for server, answer in answers]


class Clocks:
    """The servers' clocks, and by how much each is ahead of ours.

    Waiters are served in the order of the time at which they came. Their own clocks may show anything,
    so this is the servers' time, which each of their answers tells.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._majority = len(names) // 2 + 1
        self._ahead: dict[int, float] = {}
        self._warned: set[int] = set()

    @property
    def known(self) -> bool:
        """Whether a majority has ever told what it shows."""
        return len(self._ahead) >= self._majority

    def heard(self, server: int, time: float, *, sent: float, received: float) -> None:
        """Record an answer: the server's clock showed ``time`` between these two of ours.

        What was known stays as far as the answer allows it, so of many answers the fastest counts.
        """
        least, most = time - received, time - sent
        self._ahead[server] = ahead = min(max(self._ahead.get(server, least), least), most)
        behind = max(list(self._ahead.values())) - ahead
        if behind > APART and server not in self._warned:
            self._warned.add(server)
            foremost = max(list(self._ahead), key=self._ahead.__getitem__)
            logger.warning(
                "the clock of %s is %.0f s behind the clock of %s: if that server loses its data,"
                " fences might decrease by as much. Synchronize both clocks with a time server"
                " [weblock.clock_behind]",
                *(self._names[server], behind, self._names[foremost]),
            )

    def time(self, now: float) -> float:
        """Return what all clocks of a majority show now, at least.

        With all of them known, no minority can move it, wherever its clocks are.
        """
        return now + sorted([*self._ahead.values()], reverse=True)[self._majority - 1]
