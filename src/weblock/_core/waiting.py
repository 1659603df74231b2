"""What a waiter knows: its place in the queue of a key, and how fast the queue moves.

1. The engine has answered that the caller is in the queue. The caller makes a ``Waiter``, which the
   keeper keeps, and waits for its notification.
2. The keeper sends a heartbeat for each place about once in ``BEAT`` seconds. The first waiter's
   comes when the lease before it should end, so an expired lease is passed on in time.
3. The answer to a heartbeat stays in the place (``waiting``, ``anchor``, ``pace``). If it says anything
   but that the caller still waits, the keeper notifies the caller, as the engine should have done.

A lost notification therefore costs one heartbeat interval. A place without heartbeats lapses. That
happens to a waiter whose wait is over and whose task or thread is blocked: it might still continue
and release by itself, so nothing else does so for it.
"""

from __future__ import annotations

from typing import Final

from ..errors import EngineUnavailable
from .holding import Anchor, Terms
from .ports import CheckAgain, Granted, Mailbox, Pulse, Reply, Runtime
from .table import Claim, Held, Waiting

BEAT: Final = 1.0
"""Seconds between a waiter's heartbeats, at most."""

GRACE: Final = 0.01
"""Seconds after a lease's end at which the first waiter asks whether it has ended."""

LATE: Final = 0.1
"""Seconds after the end of its wait at which a waiter can still take its turn.

An event loop that was blocked, or a thread that got no processor, may find a turn that came in time.
"""

LATEST: Final = 5.0
"""Seconds after which an abandoned request can no longer reach the engine, beyond two ttl."""


class Pace:
    """Estimates how fast a queue moves, from the positions that one waiter has had."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last = 0.0
        self.place: int | None = None
        """How many waiters were in front when it last asked; the holder is not counted."""

    def saw(self, place: int, now: float) -> None:
        if self._first is None or place > self._first[1]:  # Later, in a queue that was lost.
            self._first = now, place
        self._last, self.place = now, place

    def until_its_turn(self, rest: float) -> float:
        """Return the seconds until its turn at the pace that was seen.

        If nothing has moved, return ``rest``.
        """
        if self._first is None or self.place is None or self.place >= self._first[1]:
            return rest
        since, first = self._first
        return (self._last - since) / (first - self.place) * (self.place + 1)


class Waiter:
    """A place in the queue of a key, as its waiter has it. The keeper sends its heartbeats."""

    slack = 0.25
    over = False
    was_given_back = False
    """Whether the keeper gives back what the waiter has: its caller need not."""

    def __init__(
        self,
        key: str,
        claim: Claim,
        terms: Terms,
        *,
        runtime: Runtime,
        mailbox: Mailbox,
        locker: object,
        control: object,
        give_up_at: float | None,
    ) -> None:
        self.key = key
        self.owner = claim.owner
        self.terms = terms
        self.locker = locker
        """What the caller waits by: its waiters end when it is closed."""
        self.control = control
        """The flow of control that waits."""
        self.due = 0.0
        self.pace = Pace()
        self.waiting: Waiting
        self.rest: float
        """The latest answer that the caller waits, and how long the lease then had left."""
        self.anchor: Anchor
        self._runtime = runtime
        self._mailbox = mailbox
        self.give_up_at = give_up_at
        """When the wait ends; ``None`` is never."""

    @property
    def deaf(self) -> bool:
        """Whether its caller can never continue: its event loop has been closed."""
        return self._mailbox.deaf

    def waits(self, waiting: Waiting, rest: float, anchor: Anchor) -> None:
        self.waiting, self.rest, self.anchor = waiting, rest, anchor
        now = self._runtime.now()
        self.pace.saw(waiting.position, now)
        pause = BEAT * (0.75 + self._runtime.jitter() / 4)
        if waiting.position == 0:
            pause = min(pause, max(0.0, rest) + GRACE)
        self.due = now + pause

    def wake(self) -> None:
        """Have the caller look again at what it waits for."""
        self._mailbox.put(CheckAgain())

    def close(self) -> float:
        """Notify the caller of the end; return for how long to reject its owner."""
        self.over = self.was_given_back = True
        self.wake()
        return 2 * self.terms.ttl + LATEST  # A request may be under way.

    def pulse(self, now: float) -> Pulse | None:
        if self.give_up_at is not None and now > self.give_up_at + LATE:
            self.over = True
            return None
        return Pulse(self.key, self.owner, self.terms.first_ttl, waits=True)

    def heard(self, reply: Reply | EngineUnavailable, sent: float, now: float) -> None:
        """Process the answer to a heartbeat: still waiting, or a reason to notify the caller."""
        self.due = now + BEAT
        if isinstance(reply, EngineUnavailable):
            self._mailbox.put(CheckAgain())
            return
        self.anchor = Anchor(reply.now, sent)
        match reply.answer:
            case Waiting(until=until):
                self.waits(reply.answer, until - reply.now, self.anchor)
            case Held(fence, until):
                self._mailbox.put(Granted(fence, until))
            case _:
                self._mailbox.put(CheckAgain())
