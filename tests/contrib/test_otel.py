"""OpenTelemetry's metrics and traces of locks, tried with its SDK."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.dependencies import get_dist_dependency_conflicts
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.servers import Server
from tests.support.waiting import PATIENCE, eventually, waiters
from weblock import AsyncLocks, ConfigurationError, EngineUnavailable, Key, Locks, LockTimeout
from weblock._adapting import tell
from weblock.contrib.otel import WeblockInstrumentor, instrument, observer, traced
from weblock.events import Repeated
from weblock.keys import KeyTemplate

DOCS = Path(__file__).parents[2] / "docs/monitoring"
DASHBOARD = (DOCS / "grafana.json").read_text()
ALERTS = (DOCS / "alerts.yml").read_text()

Point = tuple[dict[str, Any], Any]


class Telemetry:
    """An SDK that keeps what it is given."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.spans = InMemorySpanExporter()
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.tracer = self.tracer_provider.get_tracer("test")

    @property
    def providers(self) -> dict[str, Any]:
        return {"meter_provider": self.meter_provider, "tracer_provider": self.tracer_provider}

    def points(self, name: str) -> list[Point]:
        """The attributes of a metric's points, with their values, or the sums of histograms."""
        data = self.reader.get_metrics_data()
        if data is None:
            return []
        return [
            (
                dict(point.attributes or {}),
                getattr(point, "value", None) or getattr(point, "count", 0),
            )
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def value(self, name: str, **attributes: str) -> Any:
        wanted = {f"weblock.{key}": value for key, value in attributes.items()}
        return sum(value for found, value in self.points(name) if wanted.items() <= found.items())


@pytest.fixture
def sdk() -> Iterator[Telemetry]:
    sdk = Telemetry()
    yield sdk
    sdk.meter_provider.shutdown()
    sdk.tracer_provider.shutdown()


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def locks(url: str, sdk: Telemetry) -> Iterator[Locks]:
    with Locks.from_url(url, namespace="shop", observers=[observer(**sdk.providers)]) as locks:
        yield locks


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_hold_is_measured(locks: Locks, sdk: Telemetry, url: str) -> None:
    """How long was waited and held is recorded by namespace, template, engine and outcome, never by key."""
    with locks.hold(Key("item:{item_id}", item_id=7)):
        assert sdk.value("weblock.lock.held", template="item:{item_id}") == 1
    with locks.hold("given whole"):
        pass
    about = {"weblock.engine": url, "weblock.namespace": "shop"}
    template, whole = {"weblock.template": "item:{item_id}"}, {"weblock.template": ""}
    for name, outcome in (("wait", "acquired"), ("hold", "released")):
        points = sdk.points(f"weblock.lock.{name}.duration")
        expected = {**about, "weblock.outcome": outcome}
        assert points == [({**expected, **template}, 1), ({**expected, **whole}, 1)]
    assert sdk.value("weblock.lock.acquisitions", outcome="acquired") == 2
    assert sdk.value("weblock.lock.held") == 0
    assert sdk.points("weblock.engine.up") == [({"weblock.engine": url}, 1)]
    assert sdk.value("weblock.engine.duration", operation="acquire", outcome="answered") == 2
    assert sdk.value("weblock.engine.duration", operation="release", outcome="answered") == 2


def test_requests_that_are_not_executed_are_counted(locks: Locks, sdk: Telemetry) -> None:
    """By outcome and template, never by idempotency key."""
    key = KeyTemplate.parse("idempotency:{digest}").fill({"digest": "d"})
    for outcome in ("replayed", "replayed", "reused"):
        tell(locks, Repeated, key, outcome=outcome)
    name, template = "weblock.idempotent.repeats", "idempotency:{digest}"
    assert sdk.value(name, outcome="replayed", template=template) == 2
    assert sdk.value(name, outcome="reused", template=template) == 1


def test_buckets_suit_locks(locks: Locks, sdk: Telemetry) -> None:
    """Histograms have buckets from a millisecond to minutes, instead of the SDK's, which are for milliseconds."""
    locks.acquire("a").release()
    data = sdk.reader.get_metrics_data()
    assert data
    bounds = {
        metric.name: (metric.unit, point.explicit_bounds[0], point.explicit_bounds[-1])
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        if hasattr(point := metric.data.data_points[0], "explicit_bounds")
    }
    assert bounds == {
        "weblock.lock.wait.duration": ("s", 0.001, 300),
        "weblock.lock.hold.duration": ("s", 0.005, 3600),
        "weblock.engine.duration": ("s", 0.0001, 5),
    }


def test_waiters_are_counted_while_they_wait(locks: Locks, sdk: Telemetry) -> None:
    """A waiter is counted until it has the key, or has waited in vain."""
    lease = locks.acquire("a")
    waiting = in_thread(lambda: locks.acquire("a", wait=60).release())
    eventually(lambda: waiters(locks, "a") == 1)
    eventually(lambda: sdk.value("weblock.lock.waiters") == 1)
    with pytest.raises(LockTimeout):
        in_vain(locks)
    lease.release()
    waiting.join()
    assert sdk.value("weblock.lock.waiters") == 0
    assert sdk.value("weblock.lock.acquisitions", outcome="timed_out") == 1
    assert sdk.value("weblock.lock.acquisitions", outcome="acquired") == 2


def in_vain(locks: Locks) -> None:
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            locks.acquire("a", wait=0.05)
        except LockTimeout as busy:
            failures.append(busy)

    in_thread(wait).join()
    raise failures[0]


def test_losses_are_counted_by_reason(locks: Locks, sdk: Telemetry) -> None:
    """A lease that is lost is counted with the reason, and is held no longer."""
    locks.acquire("a", renew=False, ttl=0.1)
    eventually(lambda: sdk.value("weblock.lease.lost", reason="expired") == 1)
    assert sdk.value("weblock.lock.held") == 0


def test_an_engine_that_is_down_is_seen(sdk: Telemetry) -> None:
    """The gauge of an engine follows whether it answers, and callers that got nothing are counted."""
    with Server() as server:
        url = server.url(recovery="off", timeout=PATIENCE)
        telling = observer(**sdk.providers)
        with Locks.from_url(url, wait=0, observers=[telling]) as locks:
            locks.acquire("a").release()
            assert sdk.value("weblock.engine.up") == 1
            server.kill()
            with pytest.raises(EngineUnavailable):
                locks.acquire("a")
            assert sdk.value("weblock.engine.up") == 0
            assert sdk.value("weblock.lock.acquisitions", outcome="unavailable") == 1
            with locks.hold("a", on_unavailable="open"):
                pass
            assert sdk.value("weblock.lock.failed_open") == 1
            server.start()
            eventually(locks.ping, despite=EngineUnavailable)
            assert sdk.value("weblock.engine.up") == 1
    (span,) = [each for each in sdk.spans.get_finished_spans() if "failed_open" not in each.name][
        :1
    ]
    assert span.status.status_code is trace.StatusCode.ERROR


def test_a_request_tells_what_became_of_its_lease(locks: Locks, sdk: Telemetry) -> None:
    """The span that acquires has events for what happens to the lease, with the fence, wherever it happens."""
    with sdk.tracer.start_as_current_span("request"):
        lease = locks.acquire("a")
        in_thread(lease.release).join()
        lost = locks.acquire("b", renew=False, ttl=0.1)
        eventually(lambda: sdk.value("weblock.lease.lost") == 1)
    (span,) = sdk.spans.get_finished_spans()
    events = [(event.name, (event.attributes or {})["weblock.fence"]) for event in span.events]
    assert events == [
        ("weblock.acquired", lease.fence),
        ("weblock.released", lease.fence),
        ("weblock.acquired", lost.fence),
        ("weblock.lost", lost.fence),
    ]


def test_a_wait_is_a_span_of_its_own(locks: Locks, sdk: Telemetry) -> None:
    """A wait is a child of the request's span, and links to the holder's; one in vain is an error."""
    with sdk.tracer.start_as_current_span("holder") as holder:
        lease = locks.acquire("a", label=traced("web-1"))

    def request() -> None:
        with sdk.tracer.start_as_current_span("request"):
            with pytest.raises(LockTimeout):
                locks.acquire("a", wait=0.05)
            locks.acquire("a", wait=60).release()

    waiting = in_thread(request)
    eventually(lambda: len(sdk.spans.get_finished_spans()) == 2)
    eventually(lambda: waiters(locks, "a") == 1)
    lease.release()
    waiting.join()
    _, in_vain, in_turn, whole = sdk.spans.get_finished_spans()
    assert (in_vain.name, in_turn.name, whole.name) == ("weblock wait", "weblock wait", "request")
    for span in (in_vain, in_turn):
        assert span.parent == whole.context
        assert (span.attributes or {})["weblock.key"] == "a"
        (link,) = span.links
        assert link.context.span_id == holder.get_span_context().span_id
    assert in_vain.end_time - in_vain.start_time >= 50_000_000  # type: ignore[operator]
    assert in_vain.status.status_code is trace.StatusCode.ERROR
    assert in_turn.status.status_code is trace.StatusCode.UNSET


async def test_tasks_are_told_apart(url: str, sdk: Telemetry) -> None:
    """Each task's lease is told to the span of that task."""
    async with AsyncLocks.from_url(url) as locks:
        stop = instrument(locks, **sdk.providers)

        async def request(name: str) -> None:
            with sdk.tracer.start_as_current_span(name):
                async with locks.hold(name):
                    await asyncio.sleep(0.01)

        await asyncio.gather(request("a"), request("b"))
        stop()
        await (await locks.acquire("c")).release()
    for span in sdk.spans.get_finished_spans():
        keys = [(event.attributes or {})["weblock.key"] for event in span.events]
        assert keys == [span.name] * 2
    assert sdk.value("weblock.lock.acquisitions") == 2


def test_a_label_may_name_the_span(sdk: Telemetry) -> None:
    """``traced`` adds the current span to a label, and nothing where there is none."""
    assert traced("web-1") == "web-1"
    with sdk.tracer.start_as_current_span("request") as span:
        context = span.get_span_context()
        named = f"traceparent=00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        assert traced("web-1") == f"web-1 {named}"


def test_nothing_is_told_of_what_came_before(url: str, sdk: Telemetry) -> None:
    """Instrumented in the middle, no gauge goes below zero."""
    with Locks.from_url(url) as locks:
        lease = locks.acquire("a")
        stop = instrument(locks, **sdk.providers)
        lease.release()
        locks.acquire("a").release()
        stop()
    assert sdk.value("weblock.lock.held") == 0
    assert sdk.value("weblock.lock.acquisitions") == 1


@pytest.mark.parametrize("wrong", ["prometheus", 7])
def test_what_is_no_provider_is_refused(wrong: Any) -> None:
    """A mistake is refused at once, with the remedy."""
    with pytest.raises(ConfigurationError, match="give a provider of OpenTelemetry's SDK"):
        instrument(meter_provider=wrong)
    with pytest.raises(ConfigurationError, match="give a provider of OpenTelemetry's SDK"):
        observer(tracer_provider=wrong)
    with pytest.raises(ConfigurationError, match="neither Locks nor AsyncLocks"):
        instrument(wrong)


def test_without_an_sdk_it_sleeps(url: str) -> None:
    """While OpenTelemetry records nothing, no event is built; once it does, everything is told."""
    with Locks.from_url(url) as locks:
        stop = instrument(locks)
        assert "acquired" not in {kind.name for kind in locks._observers.wanted}
        stop()
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


LATE = """
import time
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from weblock import Locks
from weblock.contrib.otel import instrument

locks = Locks.from_url("memory://")
instrument()
locks.acquire("a").release()
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
until = time.monotonic() + 60
while reader.get_metrics_data() is None:
    locks.acquire("a").release()
    assert time.monotonic() < until
"""


def test_opentelemetry_finds_it() -> None:
    """The entry point names a class that instruments once, and takes it back."""
    from importlib.metadata import entry_points

    (found,) = [
        each for each in entry_points(group="opentelemetry_instrumentor") if each.name == "weblock"
    ]
    assert found.load() is WeblockInstrumentor
    assert found.dist
    assert get_dist_dependency_conflicts(found.dist) is None
    sdk = Telemetry()
    WeblockInstrumentor().instrument(skip_dep_check=True, **sdk.providers)
    try:
        WeblockInstrumentor().instrument(skip_dep_check=True)
        with Locks.from_url(f"memory://{uuid.uuid4().hex}") as locks:
            locks.acquire("a").release()
            assert WeblockInstrumentor().is_instrumented_by_opentelemetry
            WeblockInstrumentor().uninstrument()
            locks.acquire("a").release()
    finally:
        WeblockInstrumentor().uninstrument()
    assert sdk.value("weblock.lock.acquisitions") == 1


EXPORTED = """
from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import REGISTRY, generate_latest
from weblock import Key, Locks
from weblock.contrib.otel import instrument

metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
instrument()
locks = Locks.from_url("memory://")
lease = locks.acquire(Key("item:{item_id}", item_id=7))
locks.force_release("item:7")
other = locks.try_acquire("item:7")
assert other.fence
other.release()
for event in ("Waiting", "AtRisk"):
    from weblock import events
    about = dict(engine="memory://", namespace="default", key="a", template=None, label="")
    more = dict(fence=1, cause="", remaining=1.0) if event == "AtRisk" else dict(place=0, holder=None)
    locks._observers.tell(getattr(events, event)(**about, **more))
print(generate_latest(REGISTRY).decode())
"""


@pytest.fixture(scope="module")
def exported() -> str:
    done = subprocess.run(
        [sys.executable, "-c", EXPORTED], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_dashboard_and_the_alerts_use_metrics_that_there_are(exported: str) -> None:
    """Each metric and each label that the files of the docs name is exported by Prometheus' exporter."""
    wanted = {name for text in (DASHBOARD, ALERTS) for name in re.findall(r"\bweblock_\w+", text)}
    there = set(re.findall(r"\bweblock_\w+", exported))
    assert wanted
    assert wanted <= there
    assert {panel["type"] for panel in json.loads(DASHBOARD)["panels"]} == {"stat", "timeseries"}


@pytest.mark.skipif(not shutil.which("promtool"), reason="Prometheus is not installed")
def test_prometheus_takes_it(exported: str) -> None:
    """Prometheus' own tool has nothing to say against the metrics and the rules."""
    checks = {("metrics",): exported, ("rules", "/dev/stdin"): ALERTS}
    for what, text in checks.items():
        done = subprocess.run(["promtool", "check", *what], input=text, text=True, check=False)
        assert done.returncode == 0


def test_losses_are_counted_from_zero(locks: Locks, sdk: Telemetry) -> None:
    """A counter that begins with the first loss would hide it: an increase from nothing is none."""
    locks.acquire("a").release()
    reasons = {found["weblock.reason"]: value for found, value in sdk.points("weblock.lease.lost")}
    assert reasons == dict.fromkeys(("expired", "taken", "max_hold", "closed"), 0)
