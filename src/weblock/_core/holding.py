r"""What a holder knows of its lease, and how it finds out that the lease is lost.

A holder must stop before another caller can get the key, although its clock and the engine's are two
clocks, and messages take time. So a deadline is computed from a time *before* the request was sent:

    holder   |--- sent ----------------------- deadline (stops relying on the lease)
                    \                               |<- drift of the clocks, MARGIN ->|
    engine   |------ granted -------------------------------------------------- until (may grant again)

- However long the answer took, the deadline comes before the end in the engine (``Anchor``).
- A renewal moves the deadline out, never back. An answer that the lease is gone means *lost*; no
  answer means *unknown* until the deadline, and *lost* after it.
- A lease whose deadline has passed is lost, whether or not anything reports it: ``check`` compares
  the time. A lease that is lost stays lost, even if a late answer says that it was renewed.

``Holding`` is one lease of one key. Its holder calls ``check``; the keeper, perhaps in another thread,
renews it, moves the deadline, and reports a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ..errors import EngineUnavailable, LeaseLost
from ..events import AtRisk, LeaseEvent, Lost, ReleaseAsked
from ..keys import unqualified
from .ports import Pulse, Reply
from .reporting import NOBODY, Observers
from .table import Held

DRIFT: Final = 0.01
"""How much faster than ours the engine's clock may run, as a share of the time that passes.

Unless the terms say otherwise.
"""

MARGIN: Final = 0.003
"""Seconds for the granularity of clocks and of an engine's expiry."""

CONFIRM_AFTER: Final = 0.1
"""Seconds after which a handed-over lease is confirmed, if it is still held then."""

RETRY: Final = 0.05
"""Seconds from a renewal that failed to the next one, at least."""

Callback = Callable[[], object]

H = TypeVar("H")


def call_once(callbacks: list[Callback]) -> None:
    """Call each function, the last one first, and forget it. Several threads may do so at once."""
    while callbacks:
        try:
            callback = callbacks.pop()
        except IndexError:  # Another thread has the last one.
            return
        callback()


@dataclass(slots=True)
class Anchor:
    """A time on the engine's clock, and the earlier local time at which the request was sent.

    Each request makes one, and to make a frozen one would take three times as long.
    """

    engine: float
    local: float

    @classmethod
    def at(cls, time: float) -> Anchor:
        """Return the anchor of an engine that measures time by the asking process's own clock."""
        return cls(time, time)

    def deadline(self, until: float, *, at_most: float, drift: float) -> float:
        """Return the local time at which to stop relying on a lease that ends at ``until``.

        It is counted from before the request was sent, less a drift allowance, so it comes before
        the engine's own end, however long the reply took: the validity of the Redlock algorithm,
        and the conservative lease of Chubby (Burrows, OSDI 2006, section 2.8).

        No lease counts for longer than ``at_most`` seconds from there, which is what was requested.
        An engine whose clock was set back answers with an end that is hours ahead, and forgets the
        lease the moment its clock is corrected.
        """
        return self.local + min(until - self.engine, at_most) * (1 - drift) - MARGIN

    def is_implausible(self, until: float, *, at_most: float, drift: float) -> bool:
        """Whether ``until`` is later than the end of any lease of ``at_most`` seconds.

        Then the engine's clock was set forward, or the message does not come from the engine.
        """
        return until - self.engine > at_most / (1 - drift) + MARGIN


def covering(length: float, drift: float) -> float:
    """Return the ttl to request so that the deadline is ``length`` seconds from now, or later."""
    return (length + 2 * MARGIN) / (1 - drift)


@dataclass(frozen=True, slots=True)
class Terms:
    """How a key is to be held. Durations are seconds."""

    ttl: float
    max_hold: float | None
    renew: bool
    max_waiters: int
    label: str
    fail_open: bool = False
    drift: float = DRIFT
    limit: int = 1
    """How many may hold the key together: see ``table``."""

    @property
    def first_ttl(self) -> float:
        return self.ttl if self.max_hold is None else self.until_released(self.max_hold)

    def until_released(self, seconds: float) -> float:
        """Return the ttl to request for a lease that is given up after this many seconds."""
        return min(self.ttl, covering(seconds, self.drift))


class Status:
    """What has become of a lease. Each section reads several, and a member of an ``Enum`` takes longer."""

    HELD = "held"
    RELEASED = "released"
    LOST = "lost"


class Holding:
    """One lease of one key, as its holder has it."""

    __slots__ = (
        "__weakref__",
        "_asked",
        "_capped",
        "_when_asked",
        "_when_lost",
        "asked_to_release",
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

    def __init__(  # noqa: PLR0917 - the way of a request calls it by position, in half the time
        self,
        key: str,
        owner: str,
        fence: int,
        terms: Terms,
        deadline: float,
        confirmed: bool,  # noqa: FBT001
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
        self._capped = False
        self.hold_until: float | None = None
        if terms.max_hold is not None:
            self._capped = terms.first_ttl < terms.ttl
            self.hold_until = now + terms.max_hold
            deadline = self._within_max_hold(deadline)
        self.deadline = deadline
        self.status = Status.HELD
        self.at_risk = False
        self.reason = ""
        self._when_lost: list[Callback] = []
        self.asked_to_release = False
        self._when_asked: list[Callback] = []
        self.due = self._next_renewal(now) if confirmed else now + CONFIRM_AFTER

    def held(self, now: float) -> bool:
        return self.status is Status.HELD and now < self.deadline

    def remaining(self, now: float) -> float:
        return max(0.0, self.deadline - now) if self.status is Status.HELD else 0.0

    def check(self, now: float) -> None:
        """Raise ``LeaseLost`` unless the lease is valid at ``now``."""
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
            call_once(self._when_lost)
            if reason != "forked":  # Else the parent has it still.
                self.tell(Lost, reason=reason, held_for=self.held_for())

    def let_go(self, now: float) -> bool:
        """End the lease from the holder's side, and return whether it was valid until then."""
        if self.status is Status.HELD and now < self.deadline:
            self.status = Status.RELEASED
            return True
        self.lose(self._why_it_ends())
        return self.status is Status.RELEASED

    def held_for(self) -> float:
        return self.observers.now() - self.since

    def tell(self, kind: type[LeaseEvent], **facts: Any) -> None:
        """Report an event of this lease."""
        if kind in self.observers.wanted:
            about = self.observers.about(self.key, self.label)
            self.observers.tell(kind(**about, fence=self.fence, **facts))

    def refute_release(self) -> None:
        """Accept the engine's answer that the released lease had ended before."""
        self.status = Status.HELD
        self.lose("taken")

    def after_fork(self) -> None:
        """End the copy of a lease in a child, without calling the parent's callbacks."""
        self._when_lost.clear()
        self._when_asked.clear()
        self.lose("forked")

    @property
    def released_elsewhere(self) -> bool:
        """Whether the parent process, or the keeper that is closing, releases it."""
        return self.reason in {"forked", "closed"}

    def on_lost(self, callback: Callback) -> None:
        """Call ``callback`` once when the lease is lost; at once if it is lost already."""
        self._when_lost.append(callback)
        if self.status is Status.LOST:
            call_once(self._when_lost)

    def on_ask_release(self, callback: Callback) -> None:
        """Call ``callback`` once when another caller asks for the key; at once if one has asked already."""
        self._when_asked.append(callback)
        if self.asked_to_release:
            call_once(self._when_asked)

    def ask_to_release(self) -> None:
        if self.asked_to_release or self.status is not Status.HELD:
            return
        self.asked_to_release = True
        call_once(self._when_asked)
        self.tell(ReleaseAsked, held_for=self.held_for())

    def ttl_to_extend(self, seconds: float, now: float) -> float:
        """Return the ttl to request at ``now`` so that the deadline moves by ``seconds``."""
        # With what ``Anchor.deadline`` takes off: a lease of an hour is relied on for 59.4 minutes.
        ttl = (self.remaining(now) + seconds + MARGIN) / (1 - self.terms.drift)
        if self.hold_until is None:
            return ttl
        return min(ttl, covering(self.hold_until - now, self.terms.drift))

    def renewed(self, answer: Held, anchor: Anchor, ttl: float) -> None:
        """Move the deadline to what the engine answered to a request for ``ttl`` seconds.

        It never moves back, and never beyond ``max_hold``.
        """
        deadline = anchor.deadline(answer.until, at_most=ttl, drift=self.terms.drift)
        self.deadline = max(self.deadline, self._within_max_hold(deadline))
        if self.hold_until is not None:
            self._capped = ttl >= covering(self.hold_until - anchor.local, self.terms.drift)
        self.at_risk = False
        self.due = self._next_renewal(anchor.local)
        if answer.asked:
            self.ask_to_release()

    # What the keeper asks of all that it keeps: see ``keeping.Waiter``, too.

    @property
    def slack(self) -> float:
        # Leases whose renewals are close to each other share one request from then on.
        return max(0.05, (self.deadline - self.due) / 20)

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
        if isinstance(reply, EngineUnavailable):
            was_at_risk = self.at_risk
            self.at_risk = self.deadline != self.hold_until  # Else there was nothing to renew.
            if self.at_risk and not was_at_risk:
                self.tell(AtRisk, cause=reply.message, remaining=self.remaining(now))
            left = min(self.terms.ttl, self.deadline - now)  # Little, where it was handed over.
            self.due = min(self.deadline, now + max(RETRY, left / 10))
        elif now >= self.deadline:  # It was lost in between, and stays so.
            self.lose(self._why_it_ends())
        elif isinstance(reply.answer, Held) and reply.answer.fence == self.fence:
            self.renewed(reply.answer, Anchor(reply.now, sent), self._asked)
        else:
            self.lose("taken")

    def _why_it_ends(self) -> str:
        # An answer that took long leaves a deadline just before what ``max_hold`` allows.
        ended = self._capped or self.deadline == self.hold_until
        return "max_hold" if ended else "expired"

    def _next_renewal(self, since: float) -> float:
        """Return when to ask the engine next: a third of a ttl after ``since`` at most.

        This holds however far an extension has moved the deadline, and also if ``max_hold`` leaves
        nothing to renew: a loss is noticed by then.
        """
        if not self.terms.renew:
            return self.deadline
        if self.deadline == self.hold_until:
            return min(self.deadline, since + self.terms.ttl / 3)
        return since + min(self.terms.ttl, self.deadline - since) / 3

    def _within_max_hold(self, deadline: float) -> float:
        return deadline if self.hold_until is None else min(deadline, self.hold_until)


class Holdings(list[H]):
    """The leases of one acquisition, as its caller has them.

    When no code refers to this list any more, nothing can release the leases in it: the keeper watches
    it (``OrphanWatch``), and refers to each lease alone.
    """

    __slots__ = ("__weakref__", "others")

    others: Sequence[object]
    """Further ``Holdings``, which are kept alive with this one."""


class Unprotected:
    """Stands for the lease of a section that runs without one (``fail_open``).

    It is never held, and it cannot be lost.
    """

    __slots__ = ("control", "key", "terms")

    asked_to_release = False
    owner = ""
    fence = 0
    """Below every fencing token: a resource that compares them rejects it."""
    deadline = 0.0
    status = Status.RELEASED
    """There is nothing to give back."""

    def __init__(self, key: str, terms: Terms, *, control: object) -> None:
        self.key = key
        self.terms = terms
        self.control = control

    def held(self, now: float) -> bool:  # noqa: ARG002 - as a Holding has it
        return False

    def remaining(self, now: float) -> float:  # noqa: ARG002
        return 0.0

    def check(self, now: float) -> None:
        pass

    def on_lost(self, callback: Callback) -> None:
        pass

    def on_ask_release(self, callback: Callback) -> None:
        pass
