"""Passes events to OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from opentelemetry import metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from ... import __version__
from ..._api import BaseLocks
from ..._runtime.observing import Observer, observe
from ...errors import ConfigurationError
from ...events import EVENTS, Event
from .metrics import Metrics
from .traces import Traces

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
    _check("meter_provider", meter_provider, "get_meter")
    _check("tracer_provider", tracer_provider, "get_tracer")
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
            f"instrument({locks!r:.80}) is neither Locks nor AsyncLocks: give one of them, or nothing"
            " for all locks of the process"
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
            providers = {name: given.get(name) for name in ("meter_provider", "tracer_provider")}
            WeblockInstrumentor._stop = instrument(**providers)

    def uninstrument(self, **_given: Any) -> None:
        """Stop recording."""
        if WeblockInstrumentor._stop is not None:
            WeblockInstrumentor._stop()
            WeblockInstrumentor._stop = None


def _nothing_is_recorded() -> bool:
    """Return whether no SDK is set up: the API's own providers record nothing."""
    providers = metrics.get_meter_provider(), trace.get_tracer_provider()
    return all(type(each).__module__.startswith(_OF_THE_API) for each in providers)


def _check(name: str, provider: object, method: str) -> None:
    if provider is not None and not hasattr(provider, method):
        raise ConfigurationError(
            f"{name}={provider!r:.80} has no {method}(): give a provider of OpenTelemetry's SDK, or"
            " leave it out for the provider of the process"
        )
