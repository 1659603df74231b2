"""What a holder knows of its lease, and how it finds out that the lease is lost."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from ..errors import EngineUnavailable, LeaseLost
from ..events import AtRisk, Lost, Released
from ..keys import unqualified
from .observers import NOBODY, Observers
from .ports import Pulse, Reply
from .table import Held

DRIFT: Final = 0.01
"""How much faster than ours the engine's clock may run, as a share of the time that passes.

Unless the terms say otherwise.
"""

MARGIN: Final = 0.003
"""Seconds for the granularity of clocks and of an engine's expiry."""

CONFIRM_AFTER: Final = 0.1
"""Seconds after which a lease that was handed over is confirmed, if it is still held then."""

RETRY: Final = 0.05
"""Seconds from a renewal that failed to the next, at least."""

LostCallback = Callable[[], object]

H = TypeVar("H")


class Anchor(NamedTuple):
    """An engine's time, and a local time that came before it: when the request was sent."""

    engine: float
    local: float

    @classmethod
    def at(cls, time: float) -> Anchor:
        """That of an engine which tells the time by the asker's own clock."""
        return cls(time, time)

    def deadline(self, until: float, *, at_most: float, drift: float) -> float:
        """Return the local time by which a lease must be given up that the engine keeps to ``until``.

        Counted from before the request was sent, and less a drift allowance, it comes before the
        engine's own, however long the reply took: the validity of the Redlock algorithm, and
        the conservative lease of Chubby (Burrows, OSDI 2006, section 2.8).

        No lease counts for longer than ``at_most`` seconds from there, which is what was asked
        for: an engine whose clock was set back answers with an end that lies hours ahead, and
        forgets the lease in an instant when its clock is corrected.
        """
        return self.local + min(until - self.engine, at_most) * (1 - drift) - MARGIN

    def is_implausible(self, until: float, *, at_most: float, drift: float) -> bool:
        """Whether ``until`` is later than any lease that lasts ``at_most`` seconds from here.

        Then the engine's clock was set forward, or the message is not the engine's.
        """
        return until - self.engine > at_most / (1 - drift) + MARGIN


def covering(length: float, drift: float) -> float:
    """The ttl to ask for so that the deadline comes ``length`` seconds from now, or later."""
    return (length + 2 * MARGIN) / (1 - drift)


class Terms(NamedTuple):
    """How a key is to be held. Durations are seconds."""

    ttl: float
    max_hold: float | None
    renew: bool
    max_waiters: int
    label: str
    fail_open: bool = False
    drift: float = DRIFT

    @property
    def first_ttl(self) -> float:
        return self.ttl if self.max_hold is None else self.until_released(self.max_hold)

    def until_released(self, seconds: float) -> float:
        """The ttl to ask for where a lease is given up after so many seconds."""
        return min(self.ttl, covering(seconds, self.drift))


class Status(enum.Enum):
    HELD = "held"
    RELEASED = "released"
    LOST = "lost"


class Holding:
    """One lease in the hands of its holder.

    The holder asks ``check``; the keeper moves the deadline and reports losses, perhaps from
    another thread. A lease whose deadline has passed is lost, whether or not anybody says so.
    """

    __slots__ = (
        "__weakref__",
        "_asked",
        "_callbacks",
        "at_risk",
        "control",
        "deadline",
        "due",
        "fence",
        "hold_until",
        "key",
        "label",
        "observers",
        "owner",
        "reason",
        "since",
        "status",
        "terms",
        "void",
    )

    def __init__(
        self,
        key: str,
        owner: str,
        fence: int,
        terms: Terms,
        *,
        deadline: float,
        confirmed: bool,
        now: float,
        control: object,
        void: float,
        label: str = "",
        observers: Observers = NOBODY,
    ) -> None:
        self.key = key
        self.owner = owner
        self.fence = fence
        self.terms = terms
        self.control = control
        self.void = void
        self.label = label
        self.observers = observers
        self.since = now
        self._asked = terms.ttl
        self.hold_until = None if terms.max_hold is None else now + terms.max_hold
        self.deadline = deadline if terms.max_hold is None else self._within_max_hold(deadline)
        self.status = Status.HELD
        self.at_risk = False
        self.reason = ""
        self._callbacks: list[LostCallback] = []
        self.due = self._next_renewal(now) if confirmed else now + CONFIRM_AFTER

    def held(self, now: float) -> bool:
        return self.status is Status.HELD and now < self.deadline

    def remaining(self, now: float) -> float:
        return max(0.0, self.deadline - now) if self.status is Status.HELD else 0.0

    def check(self, now: float) -> None:
        """Raises ``LeaseLost`` unless the lease is still ours at ``now``."""
        if self.status is Status.HELD and now >= self.deadline:
            self.lose(self._why_it_ends())
        if self.status is not Status.HELD:
            raise self.loss()

    def loss(self) -> LeaseLost:
        return LeaseLost(unqualified(self.key), fence=self.fence, reason=self.reason or "released")

    def lose(self, reason: str) -> None:
        if self.status is Status.HELD:
            self.status = Status.LOST
            self.reason = reason
            while self._callbacks:
                self._callbacks.pop()()
            if Lost in self.observers.wanted and reason != "forked":  # The parent has it still.
                lost = Lost(**self.about(), reason=reason, held_for=self.held_for())
                self.observers.tell(lost)

    def let_go(self, now: float) -> bool:
        """Ends the lease from the holder's side. Whether it was ours until then."""
        if self.status is Status.HELD and now < self.deadline:
            self.status = Status.RELEASED
        else:
            self.lose(self._why_it_ends())
        return self.status is Status.RELEASED

    def tell_release(self) -> None:
        if Released in self.observers.wanted:
            self.observers.tell(Released(**self.about(), held_for=self.held_for()))

    def held_for(self) -> float:
        return self.observers.now() - self.since

    def about(self) -> dict[str, Any]:
        """The fields of a ``LeaseEvent``."""
        return {**self.observers.about(self.key, self.label), "fence": self.fence}

    def refute_release(self) -> None:
        """Takes the engine's word that what we released was not ours any more."""
        self.status = Status.HELD
        self.lose("taken")

    def disown(self) -> None:
        """Marks the copy of a lease in a forked child, without telling the parent's callbacks."""
        self._callbacks = []
        self.lose("forked")

    @property
    def left_to_others(self) -> bool:
        """Whether it is for others to release: the parent process, or the keeper that closed."""
        return self.reason in {"forked", "closed"}

    def on_lost(self, callback: LostCallback) -> None:
        """Calls ``callback`` once when the lease is lost; at once if it is lost already."""
        self._callbacks.append(callback)
        if self.status is Status.LOST and callback in self._callbacks:
            self._callbacks.remove(callback)
            callback()

    def ttl_to_extend(self, seconds: float, now: float) -> float:
        """Return the ttl to ask for at ``now`` so that the deadline moves out by ``seconds``."""
        ttl = self.remaining(now) + seconds
        if self.hold_until is None:
            return ttl
        return min(ttl, covering(self.hold_until - now, self.terms.drift))

    def renewed(self, answer: Held, anchor: Anchor, ttl: float) -> None:
        """Move the deadline out to what the engine answered to a request for ``ttl`` seconds.

        It never moves back, and never beyond ``max_hold``.
        """
        deadline = anchor.deadline(answer.until, at_most=ttl, drift=self.terms.drift)
        self.deadline = max(self.deadline, self._within_max_hold(deadline))
        self.at_risk = False
        self.due = self._next_renewal(anchor.local)

    # What the keeper asks of everything that it keeps.

    slack = 0.05

    def close(self) -> float:
        self.lose("closed")
        return self.void

    @property
    def over(self) -> bool:
        return self.status is not Status.HELD

    def pulse(self, now: float) -> Pulse | None:
        if now >= self.deadline:
            self.lose(self._why_it_ends())
        if not self.terms.renew:
            self.due = self.deadline  # There is nothing to say until then, whatever was planned.
        if self.over or not self.terms.renew:
            return None
        self._asked = self.terms.ttl
        if self.hold_until is not None:
            self._asked = self.terms.until_released(self.hold_until - now)
        return Pulse(self.key, self.owner, self._asked)

    def heard(self, reply: Reply | EngineUnavailable, sent: float, now: float) -> None:
        """Takes the answer to a pulse: renewed, lost, or unknown until the deadline passes."""
        if isinstance(reply, EngineUnavailable):
            was_at_risk = self.at_risk
            self.at_risk = self.deadline != self.hold_until  # Else there was nothing to renew.
            if self.at_risk and not was_at_risk and AtRisk in self.observers.wanted:
                remaining = self.remaining(now)
                risk = AtRisk(**self.about(), cause=str(reply), remaining=remaining)
                self.observers.tell(risk)
            left = min(self.terms.ttl, self.deadline - now)  # Little, where it was handed over.
            self.due = min(self.deadline, now + max(RETRY, left / 10))
        elif now >= self.deadline:  # Whoever looked meanwhile took it for lost, and so it is.
            self.lose(self._why_it_ends())
        elif isinstance(reply.answer, Held) and reply.answer.fence == self.fence:
            self.renewed(reply.answer, Anchor(reply.now, sent), self._asked)
        else:
            self.lose("taken")

    @property
    def forgotten(self) -> bool:
        """Whether it would be renewed, though nobody can release it: it is in nobody's hands."""
        return self.status is Status.HELD and self.terms.renew

    def _why_it_ends(self) -> str:
        return "max_hold" if self.deadline == self.hold_until else "expired"

    def _next_renewal(self, since: float) -> float:
        """Return when the engine is to be asked next: a third of a ttl after ``since`` at most.

        However far an extension has moved the deadline out, and also where ``max_hold`` leaves
        nothing to renew: a lease that was lost is noticed by then.
        """
        if not self.terms.renew:
            return self.deadline
        if self.deadline == self.hold_until:
            return min(self.deadline, since + self.terms.ttl / 3)
        return since + min(self.terms.ttl, self.deadline - since) / 3

    def _within_max_hold(self, deadline: float) -> float:
        return deadline if self.hold_until is None else min(deadline, self.hold_until)


class Hands(list[H]):
    """The leases of one acquisition, in the hands of whoever acquired them.

    The keeper knows leases, not hands: when nobody refers to these any more, nobody can release
    what was in them.
    """

    __slots__ = ("__weakref__", "others")

    others: Sequence[object]
    """Further hands, which are kept with these."""


class Unprotected:
    """What stands for the lease of a section that runs without one, where it may (``fail_open``).

    It is never held, and it cannot be lost.
    """

    __slots__ = ("control", "key")

    owner = ""
    fence = None
    deadline = 0.0
    status = Status.RELEASED
    """There is nothing to give back."""

    def __init__(self, key: str, *, control: object) -> None:
        self.key = key
        self.control = control

    def held(self, now: float) -> bool:  # noqa: ARG002 - as a Holding has it
        return False

    def remaining(self, now: float) -> float:  # noqa: ARG002
        return 0.0

    def check(self, now: float) -> None:
        """Passes: there is nothing to lose."""

    def on_lost(self, callback: LostCallback) -> None:
        """Never calls ``callback``."""
