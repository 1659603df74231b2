"""Traces: a span for each wait, and what happens to a lease as events of the span that acquired it."""

from __future__ import annotations

import re
import time
from contextvars import ContextVar
from typing import Final

from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode, TraceFlags, Tracer

from ...events import (
    Acquired,
    AtRisk,
    Event,
    FailedOpen,
    Forgotten,
    GaveUp,
    HandedOver,
    KeyEvent,
    Lost,
    Refused,
    Released,
    TakenOver,
    TimedOut,
    Unavailable,
    Waiting,
)
from .metrics import lease_of

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
                self._acquired(event)
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

    def _acquired(self, event: Acquired | TakenOver) -> None:
        span = trace.get_current_span()
        if isinstance(event, Acquired) and event.handed_over:
            self._wait(event, event.waited, _waits_for.get(), None)
        if span.is_recording():
            self._add_event(span, event)
            self._spans[lease_of(event)] = span

    def _wait(
        self, event: KeyEvent | Unavailable, waited: float, holder: str | None, failure: str | None
    ) -> None:
        """Make the span of a wait that has just ended."""
        ended = time.time_ns()
        span = self._tracer.start_span(
            "weblock wait",
            start_time=ended - round(waited * 1e9),
            attributes=_attributes(event),
            links=_links(holder),
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


def _links(holder: str | None) -> list[Link]:
    """Return a link to the span that a label names, if it names one."""
    found = _TRACE.search(holder or "")
    if not found:
        return []
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return [Link(context, {"weblock.link": "holder"})] if context.is_valid else []
