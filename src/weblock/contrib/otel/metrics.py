"""Metrics: how long is waited and held, by whom in general, and how the engine is.

Their attributes are namespace, template, engine and outcome, and never a key, of which there are too
many.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from ..._platform.forks import reset_after_fork
from ...events import (
    Acquired,
    Answered,
    AtRisk,
    Available,
    Event,
    FailedOpen,
    Forced,
    Forgotten,
    GaveUp,
    HandedOver,
    KeyEvent,
    LeaseEvent,
    Lost,
    Refused,
    Released,
    Repeated,
    TakenOver,
    TimedOut,
    Unavailable,
    Waiting,
)

WAITS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
HOLDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
ANSWERS: Final = (1e-4, 5e-4, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
"""The upper bounds of the histograms' buckets, in seconds."""

REASONS: Final = ("expired", "taken", "max_hold", "closed")

Attributes = dict[str, str]


class Metrics:
    """Counts and measures events."""

    def __init__(self, meter: Meter) -> None:
        self._wait = meter.create_histogram(
            "weblock.lock.wait.duration",
            unit="s",
            description="How long callers waited for a key, by outcome",
            explicit_bucket_boundaries_advisory=WAITS,
        )
        self._hold = meter.create_histogram(
            "weblock.lock.hold.duration",
            unit="s",
            description="How long keys were held, by outcome",
            explicit_bucket_boundaries_advisory=HOLDS,
        )
        self._answer = meter.create_histogram(
            "weblock.engine.duration",
            unit="s",
            description="How long the engine took to answer a request, by operation",
            explicit_bucket_boundaries_advisory=ANSWERS,
        )
        self._acquisitions = meter.create_counter(
            "weblock.lock.acquisitions",
            unit="{acquisition}",
            description="Attempts to acquire a key that have ended, by outcome",
        )
        self._failed_open = meter.create_counter(
            "weblock.lock.failed_open",
            unit="{section}",
            description="Sections that ran without a lock, since the engine did not answer",
        )
        self._waiters = meter.create_up_down_counter(
            "weblock.lock.waiters",
            unit="{caller}",
            description="Callers of this process that wait in a queue",
        )
        self._held = meter.create_up_down_counter(
            "weblock.lock.held", unit="{lease}", description="Leases that this process has"
        )
        self._lost = meter.create_counter(
            "weblock.lease.lost",
            unit="{lease}",
            description="Leases that ended before they were released, by reason",
        )
        self._at_risk = meter.create_counter(
            "weblock.lease.at_risk",
            unit="{lease}",
            description="Leases of which a renewal was not answered",
        )
        self._forced = meter.create_counter(
            "weblock.lease.forced",
            unit="{lease}",
            description="Leases that this process took away by force",
        )
        self._repeated = meter.create_counter(
            "weblock.idempotent.repeats",
            unit="{request}",
            description="Requests with a known idempotency key, which were not executed, by outcome",
        )
        meter.create_observable_gauge(
            "weblock.engine.up",
            [self._observe_engines],
            description="Whether the engine answered when it was asked last (1) or not (0)",
        )
        self._engines: dict[str, int] = {}
        self._seen: set[tuple[str, ...]] = set()
        self._present = _Present()
        self._on: Mapping[type[Event], Callable[[Any], None]] = {
            Acquired: self._acquired,
            Answered: self._answered,
            AtRisk: lambda event: self._at_risk.add(1, attributes_of(event)),
            Available: lambda event: self._engines.update({event.engine: 1}),
            FailedOpen: lambda event: self._failed_open.add(1, attributes_of(event)),
            Forced: lambda event: self._forced.add(1, attributes_of(event)),
            Forgotten: lambda event: self._ended(event, "forgotten"),
            HandedOver: lambda event: self._ended(event, "handed_over"),
            GaveUp: lambda event: self._not_acquired(event, "gave_up"),
            Lost: self._was_lost,
            Refused: lambda event: self._not_acquired(event, "refused"),
            Released: lambda event: self._ended(event, "released"),
            Repeated: lambda event: self._repeated.add(
                1, {**attributes_of(event), "weblock.outcome": event.outcome}
            ),
            TakenOver: lambda event: self._holds(event, attributes_of(event)),
            TimedOut: lambda event: self._not_acquired(event, "timed_out"),
            Unavailable: self._unavailable,
            Waiting: self._came,
        }

    def __call__(self, event: Event) -> None:
        """Record an event."""
        if note := self._on.get(type(event)):
            note(event)

    def _came(self, event: Waiting) -> None:
        attributes = attributes_of(event)
        self._present.come(*attributes.values())
        self._waiters.add(1, attributes)

    def _acquired(self, event: Acquired) -> None:
        attributes = attributes_of(event)
        if tuple(attributes.values()) not in self._seen:
            # What should never happen is counted from 0, because an increase from nothing to 1 is none.
            self._seen.add(tuple(attributes.values()))
            self._failed_open.add(0, attributes)
            for reason in REASONS:
                self._lost.add(0, {**attributes, "weblock.reason": reason})
        if event.handed_over:
            self._left(attributes)
        self._holds(event, attributes)
        outcome = {**attributes, "weblock.outcome": "acquired"}
        self._acquisitions.add(1, outcome)
        self._wait.record(event.waited, outcome)

    def _holds(self, event: Acquired | TakenOver, attributes: Attributes) -> None:
        self._engines[event.engine] = 1
        self._present.come(lease_of(event))
        self._held.add(1, attributes)

    def _not_acquired(self, event: TimedOut | Refused | GaveUp | Unavailable, outcome: str) -> None:
        attributes = attributes_of(event)
        if not isinstance(event, Refused) and event.place is not None:
            self._left(attributes)
        attributes = {**attributes, "weblock.outcome": outcome}
        self._acquisitions.add(1, attributes)
        self._wait.record(0.0 if isinstance(event, Refused) else event.waited, attributes)

    def _left(self, attributes: Attributes) -> None:
        if self._present.go(*attributes.values()):
            self._waiters.add(-1, attributes)

    def _unavailable(self, event: Unavailable) -> None:
        if not event.recovering:
            self._engines[event.engine] = 0
        if event.operation == "acquire":
            self._not_acquired(event, "recovering" if event.recovering else "unavailable")

    def _was_lost(self, event: Lost) -> None:
        self._lost.add(1, {**attributes_of(event), "weblock.reason": event.reason})
        self._ended(event, "lost")

    def _ended(self, event: Released | HandedOver | Lost | Forgotten, outcome: str) -> None:
        attributes = attributes_of(event)
        if self._present.go(lease_of(event)):
            self._held.add(-1, attributes)
        self._hold.record(event.held_for, {**attributes, "weblock.outcome": outcome})

    def _answered(self, event: Answered) -> None:
        attributes = {
            "weblock.engine": event.engine,
            "weblock.operation": event.operation,
            "weblock.outcome": "failed" if event.failed else "answered",
        }
        self._answer.record(event.duration, attributes)

    def _observe_engines(self, _options: CallbackOptions) -> Iterable[Observation]:
        for engine, up in list(self._engines.items()):
            yield Observation(up, {"weblock.engine": engine})


class _Present:
    """Callers that have begun and not ended; an end without a beginning is not counted."""

    def __init__(self) -> None:
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Start from zero in a forked child: its parent counts the callers that it has inherited."""
        self._guard = threading.Lock()
        self._counts: Counter[tuple[object, ...]] = Counter()

    def come(self, *who: object) -> None:
        with self._guard:
            self._counts[who] += 1

    def go(self, *who: object) -> bool:
        """Remove a caller, and return whether it was counted."""
        with self._guard:
            if not self._counts[who]:
                del self._counts[who]
                return False
            self._counts[who] -= 1
            if not self._counts[who]:
                del self._counts[who]
            return True


def attributes_of(event: KeyEvent | Unavailable) -> Attributes:
    """Return the attributes of an event's metrics.

    A key that was given whole has an empty template: some exporters for Prometheus expect the same
    attributes of all points of a metric.
    """
    return {
        "weblock.engine": event.engine,
        "weblock.namespace": event.namespace,
        "weblock.template": event.template or "",
    }


def lease_of(event: LeaseEvent) -> tuple[object, ...]:
    """Return what identifies the lease that an event is about."""
    return event.engine, event.namespace, event.key, event.fence
