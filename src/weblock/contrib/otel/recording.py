"""Passes events to OpenTelemetry, as metrics and as traces.

Metrics have the attributes namespace, template, engine and outcome, and never a key, of which there are too many. In
traces, each wait is a span, and what happens to a lease is an event of the span that acquired it.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
from opentelemetry.metrics import Counter as Counting
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TracerProvider,
)

from ... import __version__
from ..._api import BaseLocks
from ..._platform.forks import reset_after_fork
from ..._runtime.observing import Observer, observe
from ...errors import ConfigurationError
from ...events import (
    EVENTS,
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

NAME: Final = "weblock"
"""The instrumentation scope."""

_OF_THE_API: Final = ("opentelemetry.metrics", "opentelemetry.trace")
"""The modules of providers that record nothing."""


def observer(
    *, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
) -> Observer:
    """Return an observer that records metrics and traces.

    It uses the providers of the process unless others are given; while there are none but the API's
    own, which record nothing, it costs next to nothing. Raises ``ConfigurationError`` for what is no
    provider.
    """
    for name, provider in ("meter", meter_provider), ("tracer", tracer_provider):
        if provider is not None and not hasattr(provider, f"get_{name}"):
            raise ConfigurationError(
                f"{name}_provider={provider!r:.80} has no get_{name}(): give a provider of"
                " OpenTelemetry's SDK, or leave it out for the provider of the process"
            )
    measured = Metrics(metrics.get_meter(NAME, __version__, meter_provider))
    traced = Traces(trace.get_tracer(NAME, __version__, tracer_provider))

    def record(event: Event) -> None:
        measured(event)
        traced(event)

    given = meter_provider is not None or tracer_provider is not None
    return Observer(
        record,
        only=EVENTS.values(),
        immediate=True,
        asleep=None if given else _nothing_is_recorded,
    )


def instrument(
    locks: BaseLocks | None = None,
    *,
    meter_provider: MeterProvider | None = None,
    tracer_provider: TracerProvider | None = None,
) -> Callable[[], None]:
    """Record what happens to ``locks``, or to all locks of the process. Returns what ends that.

    Raises ``ConfigurationError`` for what is no ``Locks``, ``AsyncLocks`` or provider.
    """
    if locks is not None and not isinstance(locks, BaseLocks):
        raise ConfigurationError(
            f"instrument({locks!r:.80}) is neither Locks nor AsyncLocks: give one of them, or"
            " nothing for all locks of the process"
        )
    telling = observer(meter_provider=meter_provider, tracer_provider=tracer_provider)
    return observe(telling) if locks is None else locks.observe(telling)


class WeblockInstrumentor:
    """What ``opentelemetry-instrument`` finds: it instruments all locks of the process, once."""

    _stop: Callable[[], None] | None = None

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Return whether this instrumentor is active."""
        return WeblockInstrumentor._stop is not None

    def instrument(self, **given: Any) -> None:
        """Instrument all locks of the process, unless that has been done."""
        if WeblockInstrumentor._stop is None:
            WeblockInstrumentor._stop = instrument(
                meter_provider=given.get("meter_provider"),
                tracer_provider=given.get("tracer_provider"),
            )

    def uninstrument(self, **_given: Any) -> None:
        """Stop recording."""
        if WeblockInstrumentor._stop is not None:
            WeblockInstrumentor._stop()
            WeblockInstrumentor._stop = None


def _nothing_is_recorded() -> bool:
    """Return whether no SDK is set up: the API's own providers record nothing."""
    providers = metrics.get_meter_provider(), trace.get_tracer_provider()
    return all(type(each).__module__.startswith(_OF_THE_API) for each in providers)


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
        self._counters: Mapping[type[Event], Counting] = {
            AtRisk: meter.create_counter(
                "weblock.lease.at_risk",
                unit="{lease}",
                description="Leases of which a renewal was not answered",
            ),
            FailedOpen: meter.create_counter(
                "weblock.lock.failed_open",
                unit="{section}",
                description="Sections that ran without a lock, since the engine did not answer",
            ),
            Forced: meter.create_counter(
                "weblock.lease.forced",
                unit="{lease}",
                description="Leases that this process took away by force",
            ),
        }
        self._repeated = meter.create_counter(
            "weblock.idempotent.repeats",
            unit="{request}",
            description=(
                "Requests with a known idempotency key, which were not executed, by outcome"
            ),
        )
        meter.create_observable_gauge(
            "weblock.engine.up",
            [self._observe_engines],
            description="Whether the engine answered when it was asked last (1) or not (0)",
        )
        self._engines: dict[str, int] = {}
        self._seen: set[tuple[str, ...]] = set()
        self._present = _Present()

    def __call__(self, event: Event) -> None:
        """Record an event."""
        attributes: Attributes = {}
        if isinstance(event, KeyEvent | Unavailable):
            attributes = {
                "weblock.engine": event.engine,
                "weblock.namespace": event.namespace,
                # Empty for a key that was given whole: some exporters for Prometheus expect the same
                # attributes of all points of a metric.
                "weblock.template": event.template or "",
            }
        match event:
            case Answered():
                outcome = "failed" if event.failed else "answered"
                about = {"weblock.engine": event.engine, "weblock.operation": event.operation}
                self._answer.record(event.duration, {**about, "weblock.outcome": outcome})
            case Acquired() | TakenOver():
                self._engines[event.engine] = 1
                self._present.come(lease_of(event))
                self._held.add(1, attributes)
                if isinstance(event, Acquired):
                    self._acquired(event, attributes)
            case Released() | HandedOver() | Lost() | Forgotten():
                if isinstance(event, Lost):
                    self._lost.add(1, {**attributes, "weblock.reason": event.reason})
                if self._present.go(lease_of(event)):
                    self._held.add(-1, attributes)
                self._hold.record(event.held_for, {**attributes, "weblock.outcome": event.name})
            case Waiting():
                self._present.come(*attributes.values())
                self._waiters.add(1, attributes)
            case TimedOut() | Refused() | GaveUp() | Unavailable():
                self._not_acquired(event, attributes)
            case AtRisk() | FailedOpen() | Forced():
                self._counters[type(event)].add(1, attributes)
            case Repeated():
                self._repeated.add(1, {**attributes, "weblock.outcome": event.outcome})
            case Available():
                self._engines[event.engine] = 1

    def _acquired(self, event: Acquired, attributes: Attributes) -> None:
        if tuple(attributes.values()) not in self._seen:
            # What should never happen is counted from 0, because an increase from nothing to 1 is none.
            self._seen.add(tuple(attributes.values()))
            self._counters[FailedOpen].add(0, attributes)
            for reason in REASONS:
                self._lost.add(0, {**attributes, "weblock.reason": reason})
        if event.handed_over and self._present.go(*attributes.values()):
            self._waiters.add(-1, attributes)
        outcome = {**attributes, "weblock.outcome": "acquired"}
        self._acquisitions.add(1, outcome)
        self._wait.record(event.waited, outcome)

    def _not_acquired(
        self, event: TimedOut | Refused | GaveUp | Unavailable, attributes: Attributes
    ) -> None:
        outcome = event.name
        if isinstance(event, Unavailable):
            if event.recovering:
                outcome = "recovering"
            else:
                self._engines[event.engine] = 0
            if event.operation != "acquire":
                return
        waited = 0.0
        if not isinstance(event, Refused):
            waited = event.waited
            if event.place is not None and self._present.go(*attributes.values()):
                self._waiters.add(-1, attributes)
        attributes = {**attributes, "weblock.outcome": outcome}
        self._acquisitions.add(1, attributes)
        self._wait.record(waited, attributes)

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
                return False
            self._counts[who] -= 1
            if not self._counts[who]:
                del self._counts[who]
            return True


def lease_of(event: LeaseEvent) -> tuple[object, ...]:
    """Return what identifies the lease that an event is about."""
    return event.engine, event.namespace, event.key, event.fence


_TRACE: Final = re.compile(r"\btraceparent=00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})\b")

_waits_for: Final[ContextVar[str | None]] = ContextVar("weblock_otel_waits_for", default=None)
"""The label of the holder that the caller found."""


def traced(label: str) -> str:
    """Return a label that also names the current span, for ``hold(key, label=traced("web-1"))``.

    Callers that wait for its holder then link their spans to it.
    """
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return label
    return (
        f"{label} traceparent=00-{context.trace_id:032x}-{context.span_id:016x}"
        f"-{context.trace_flags:02x}"
    )


class Traces:
    """Makes spans and their events."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._spans: dict[tuple[object, ...], Span] = {}

    def __call__(self, event: Event) -> None:
        """Record an event, in the context in which it happens."""
        match event:
            case Acquired() | TakenOver():
                if isinstance(event, Acquired) and event.handed_over:
                    self._wait(event, event.waited, _waits_for.get(), None)
                span = trace.get_current_span()
                if span.is_recording():
                    self._add_event(span, event)
                    self._spans[lease_of(event)] = span
            case Released() | HandedOver() | Lost() | Forgotten():
                self._add_event(self._spans.pop(lease_of(event), None), event)
            case AtRisk():
                self._add_event(self._spans.get(lease_of(event)), event)
            case Waiting():
                _waits_for.set(event.holder)
            case TimedOut():
                self._wait(event, event.waited, event.holder, "timed out")
            case Refused():
                self._wait(event, 0.0, event.holder, "refused")
            case GaveUp():
                self._wait(event, event.waited, _waits_for.get(), "gave up")
            case Unavailable(operation="acquire"):
                self._wait(event, event.waited, None, event.cause)
            case FailedOpen():
                self._add_event(trace.get_current_span(), event)

    def _wait(
        self, event: KeyEvent | Unavailable, waited: float, holder: str | None, failure: str | None
    ) -> None:
        """Make the span of a wait that has just ended, linked to the one that its holder names."""
        ended = time.time_ns()
        links: list[Link] = []
        if found := _TRACE.search(holder or ""):
            trace_id, span_id, flags = (int(part, 16) for part in found.groups())
            context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
            links = [Link(context, {"weblock.link": "holder"})] if context.is_valid else []
        span = self._tracer.start_span(
            "weblock wait",
            start_time=ended - round(waited * 1e9),
            attributes=_attributes(event),
            links=links,
        )
        if failure:
            span.set_status(Status(StatusCode.ERROR, failure))
        span.end(ended)
        _waits_for.set(None)

    def _add_event(self, span: Span | None, event: Event) -> None:
        if span is not None and span.is_recording():
            span.add_event(f"weblock.{event.name}", _attributes(event))


def _attributes(event: Event) -> dict[str, str | int | float | bool]:
    facts = event.facts()
    return {
        f"weblock.{name}": value
        for name, value in facts.items()
        if isinstance(value, str | int | float)
    } | {"weblock.outcome": event.name}
