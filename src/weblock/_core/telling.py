"""What an acquisition and its engine report, as events.

Rare things are reported by calling a function here. On the way of every request, the caller first
checks whether any observer wants the event, which costs no call.
"""

from __future__ import annotations

from typing import Final

from ..errors import EngineRecovering, EngineUnavailable, LockTimeout
from ..events import (
    Acquired,
    Answered,
    Available,
    GaveUp,
    Recovering,
    Refused,
    TimedOut,
    Unavailable,
    Waiting,
)
from .holding import Holding
from .observers import Observers
from .outage import Outage

AGAIN: Final = 1.0
"""Seconds between two reports that an engine recovers."""


class Health:
    """How an engine has answered the callers of one ``Locks``."""

    __slots__ = ("_observers", "_outage", "_recovering_until", "spares")

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self._recovering_until = float("-inf")
        self._outage = Outage()
        self.spares = self._outage.spares

    def answered(self, operation: str, sent: float) -> None:
        """Record an answer of the engine to a request of ``sent``."""
        self.answers()
        tell_answer(self._observers, operation, sent, failed=False)

    def failed(self, sent: float) -> float:
        """Record that the engine has not answered a request of ``sent``.

        Return the seconds for which it has not answered any caller.
        """
        failing_for = self._outage.failed(sent, self._observers.now())
        self._observers.engine_fails(fails=True)
        return failing_for

    def answers(self) -> None:
        """Record that the engine answers: if it had failed, that is over."""
        observers = self._observers
        observers.engine_fails(fails=False)
        lasted, requests = self._outage.end(observers.now())
        if requests and Available in observers.wanted:
            engine = observers.engine
            observers.tell(Available(engine=engine, lasted=lasted, requests=requests))

    def recovers(self, failure: EngineRecovering) -> None:
        """Record that the engine recovers, which is reported once, however many callers notice.

        So it answers.
        """
        self.answers()
        observers, now = self._observers, self._observers.now()
        known = now < self._recovering_until
        self._recovering_until = max(self._recovering_until, now + failure.retry_after + AGAIN)
        if not known and Recovering in observers.wanted:
            cause, retry_after = failure.reason, failure.retry_after
            engine = observers.engine
            observers.tell(Recovering(engine=engine, cause=cause, retry_after=retry_after))

    def refused(
        self,
        failure: EngineUnavailable,
        operation: str,
        name: str,
        label: str,
        *,
        since: float,
        place: int | None = None,
    ) -> None:
        """Record a caller that could not be served.

        ``name`` is a key as the engine knows it, or only a namespace and its colon.
        """
        observers, recovering = self._observers, isinstance(failure, EngineRecovering)
        if not recovering:
            self.failed(since)
            self._outage.requests += 1
        if Unavailable not in observers.wanted:
            return
        about = observers.about(name, label)
        event = Unavailable(
            **{**about, "key": about["key"] or None},
            operation=operation,
            cause=failure.reason,
            recovering=recovering,
            waited=observers.now() - since,
            place=place,
        )
        observers.tell(event)


def tell_answer(observers: Observers, operation: str, sent: float, *, failed: bool) -> None:
    """Report how long the engine took to answer one request."""
    if Answered in observers.wanted:
        duration = observers.now() - sent
        engine = observers.engine
        observers.tell(
            Answered(engine=engine, operation=operation, duration=duration, failed=failed)
        )


def tell_waiting(
    observers: Observers, name: str, label: str, *, place: int, holder: str | None, others: int
) -> None:
    """Report that a caller has joined a queue."""
    if Waiting in observers.wanted:
        about = observers.about(name, label)
        observers.tell(Waiting(**about, place=place, holder=holder, others=others))


def tell_acquired(holding: Holding, since: float, *, handed_over: bool) -> None:
    """Report that a caller that asked at ``since`` has a lease."""
    if Acquired in holding.observers.wanted:
        waited = holding.since - since
        acquired = Acquired(**holding.about(), waited=waited, handed_over=handed_over)
        holding.observers.tell(acquired)


def tell_busy(
    observers: Observers,
    busy: LockTimeout,
    name: str,
    label: str,
    *,
    since: float,
    found: tuple[str | None, int],
) -> None:
    """Report that a caller did not get a key: ``found`` is a holder of it, and how many others there are."""
    holder, others = found
    if busy.waiters is not None:
        if Refused in observers.wanted:
            about = observers.about(name, label)
            refused = Refused(**about, waiters=busy.waiters, holder=holder, others=others)
            observers.tell(refused)
    elif TimedOut in observers.wanted:
        event = TimedOut(
            **observers.about(name, label),
            wait=busy.wait or 0.0,
            waited=observers.now() - since,
            place=busy.place,
            holder=holder,
            others=others,
        )
        observers.tell(event)


def tell_gave_up(
    observers: Observers, name: str, label: str, *, since: float, place: int | None
) -> None:
    """Report that a caller no longer asks."""
    if GaveUp in observers.wanted:
        about, waited = observers.about(name, label), observers.now() - since
        observers.tell(GaveUp(**about, waited=waited, place=place))
