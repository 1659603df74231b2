"""Report what happens to callers and leases, as events, and record how an engine answers.

An event is built only ``if Kind in observers.wanted``, so events that no observer wants cost nothing.

``Health`` knows the outage of an engine. While an engine is down, a caller that was waiting before
continues to ask. Of the new callers, one asks in each ``PROBE``, and the others fail at once: where
every request waits for an engine that is down, a server soon has no threads and connections left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ..errors import EngineRecovering, EngineUnavailable, LockTimeout
from ..events import (
    Answered,
    Available,
    Event,
    GaveUp,
    Recovering,
    Refused,
    TimedOut,
    Unavailable,
    Waiting,
)
from ..keys import Key
from . import table

OUTAGE: Final = 5.0
"""Seconds without an answer after which an acquisition fails, or the ttl of a renewed lease if that is longer."""

DOWN: Final = 1.0
"""Seconds without an answer to any caller after which a new caller asks only once, or not at all."""

PROBE: Final = 0.1
"""Seconds after the request of one new caller in which others get the error without a request."""

AGAIN: Final = 1.0
"""Seconds between two reports that an engine recovers."""

Listener = Callable[[Event], object]
"""Called with an event. It neither raises nor waits."""


class Observers:
    """The listeners of one ``Locks``. ``now`` is the clock of the runtime."""

    __slots__ = ("__weakref__", "engine", "now", "wanted")

    def __init__(self, engine: str, now: Callable[[], float]) -> None:
        self.engine = engine
        self.now = now
        self.wanted: Mapping[type[Event], Sequence[Listener]] = {}
        """The listeners, by the kind of event that they want."""

    def tell(self, event: Event) -> None:
        for listener in self.wanted.get(type(event), ()):
            listener(event)

    def tell_answer(self, operation: str, sent: float, *, failed: bool) -> None:
        """Report how long the engine took to answer one request."""
        if Answered in self.wanted:
            duration, engine = self.now() - sent, self.engine
            self.tell(
                Answered(engine=engine, operation=operation, duration=duration, failed=failed)
            )

    def about(self, name: str, label: str) -> dict[str, Any]:
        """Return the fields of a ``KeyEvent``, for a key as the engine knows it."""
        namespace, _, key = name.partition(":")
        return {
            "engine": self.engine,
            "namespace": namespace,
            "key": key,
            "template": name.template if isinstance(name, Key) else None,
            "label": label,
        }


NOBODY: Final = Observers("", lambda: 0.0)
"""Observers for code in which nothing can listen."""


class Health:
    """How an engine has answered the callers of one ``Locks``."""

    __slots__ = (
        "_began",
        "_failing_since",
        "_observers",
        "_probed_at",
        "_recovering_until",
        "_requests",
        "failed_at",
    )

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self.failed_at: float | None = None
        """When a request last failed; ``None`` once the engine has answered."""
        self._failing_since = self._began = 0.0
        self._probed_at = self._recovering_until = float("-inf")
        self._requests = 0
        """How many callers could not be served since the outage began."""

    def answered(self, operation: str, sent: float) -> None:
        self.answers()
        self._observers.tell_answer(operation, sent, failed=False)

    def answers(self) -> None:
        """Record that the engine answers: if it had failed, that is over."""
        observers, requests = self._observers, self._requests
        lasted = observers.now() - self._began
        self.failed_at, self._requests = None, 0
        if requests and Available in observers.wanted:
            observers.tell(Available(engine=observers.engine, lasted=lasted, requests=requests))

    def failed(self, sent: float) -> float:
        """Record that the engine has not answered a request of ``sent``.

        Return the seconds since the first failure that was followed neither by an answer nor by a
        long pause.
        """
        now = self._observers.now()
        if self.failed_at is None:
            self._began = sent
        if self.failed_at is None or now - self.failed_at > OUTAGE:
            self._failing_since = sent
        self.failed_at = now
        return now - self._failing_since

    def spares(self, now: float) -> float:
        """Return for how many seconds the engine has failed if a new caller need not ask; 0 if it must.

        No caller waits for the one that asks, which may be cancelled, or be in another process after a fork.
        """
        failed_at, failing_for = self.failed_at, now - self._failing_since
        if failed_at is None or now - failed_at > OUTAGE or failing_for < DOWN:
            return 0.0
        if now - self._probed_at >= PROBE:
            self._probed_at = now
            return 0.0
        return failing_for

    def recovers(self, failure: EngineRecovering) -> None:
        """Record that the engine answers that it recovers. Of many callers, one reports it."""
        self.answers()
        observers, now = self._observers, self._observers.now()
        known = now < self._recovering_until
        self._recovering_until = max(self._recovering_until, now + failure.retry_after + AGAIN)
        if not known and Recovering in observers.wanted:
            cause, retry_after = failure.reason, failure.retry_after
            observers.tell(
                Recovering(engine=observers.engine, cause=cause, retry_after=retry_after)
            )

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
            self._requests += 1
        if Unavailable in observers.wanted:
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

    def waits(self, name: str, label: str, answer: table.Waiting) -> None:
        observers = self._observers
        if Waiting in observers.wanted:
            about, holder = observers.about(name, label), answer.holder or None
            observers.tell(
                Waiting(**about, place=answer.position, holder=holder, others=answer.others)
            )

    def not_acquired(
        self,
        failure: BaseException,
        name: str,
        label: str,
        *,
        since: float,
        place: int | None,
        others: int,
        closed: bool,
    ) -> None:
        """Report why a caller that asked at ``since`` did not get a key.

        ``others`` is the number of holders besides the one that a ``LockTimeout`` names. Any failure that
        is neither that nor ``EngineUnavailable`` means that the caller no longer asks, and so does
        ``EngineUnavailable`` of a locker that was ``closed``.
        """
        observers, wanted = self._observers, self._observers.wanted
        if isinstance(failure, EngineUnavailable) and not closed:
            self.refused(failure, "acquire", name, label, since=since, place=place)
            return
        about, waited = observers.about(name, label), observers.now() - since
        if not isinstance(failure, LockTimeout):
            if GaveUp in wanted:
                observers.tell(GaveUp(**about, waited=waited, place=place))
            return
        about |= {"holder": failure.holder, "others": others}
        if failure.waiters is not None:
            if Refused in wanted:
                observers.tell(Refused(**about, waiters=failure.waiters))
        elif TimedOut in wanted:
            wait, place = failure.wait or 0.0, failure.place
            observers.tell(TimedOut(**about, wait=wait, waited=waited, place=place))
