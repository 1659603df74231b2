"""What a real process sends by OTLP: metrics, spans and links, as an OpenTelemetry collector gets them."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.servers import fresh_url
from tests.servers.ports import free_port
from tests.support.waiting import PATIENCE, eventually

APPLICATION = """
import asyncio
from fastapi import FastAPI
from opentelemetry import trace
from weblock import AsyncLocks, Observer
from weblock.contrib.otel import traced
from weblock.events import Waiting

app, tracer = FastAPI(), trace.get_tracer("application")
locks = AsyncLocks.from_url({url!r}, namespace="shop", wait=None)

@app.post("/")
async def both() -> str:
    waits = asyncio.Event()
    locks.observe(Observer(lambda event: waits.set(), only=[Waiting], immediate=True))
    with tracer.start_as_current_span("first"):
        async with locks.hold("item:7", label=traced("web-1")):
            second = asyncio.create_task(waiter())
            await waits.wait()
    return await second

async def waiter() -> str:
    with tracer.start_as_current_span("second"):
        async with locks.hold("item:7"):
            return "done"
"""


class Collector(ThreadingHTTPServer):
    """Receives OTLP over HTTP, as protobuf, and keeps it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.spans: list[Any] = []
        self.metrics: list[Any] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def take(self, path: str, body: bytes) -> bytes:
        """Keep what was sent, and return the answer."""
        if path == "/v1/traces":
            sent = ExportTraceServiceRequest.FromString(body)
            self.spans += [
                span
                for resource in sent.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]
            return ExportTraceServiceResponse().SerializeToString()
        measured = ExportMetricsServiceRequest.FromString(body)
        self.metrics += [
            metric
            for resource in measured.resource_metrics
            for scope in resource.scope_metrics
            if scope.scope.name == "weblock"
            for metric in scope.metrics
        ]
        return ExportMetricsServiceResponse().SerializeToString()

    def span(self, name: str) -> Any:
        """The one span of this name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found


class Receiver(BaseHTTPRequestHandler):
    """Hands each request to its collector."""

    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        answer = self.server.take(self.path, body)
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_args: object) -> None:
        """Write nothing to stderr."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector that runs until the test is over."""
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        yield collector
        collector.shutdown()
        thread.join()


def attributes(of: Any) -> dict[str, Any]:
    """The attributes of a span, an event, a link or a point."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in of.attributes}


def ended(collector: Collector) -> int:
    """How many leases have ended, as the last metrics say."""
    holds = [each for each in collector.metrics if each.name == "weblock.lock.hold.duration"]
    return sum(point.count for point in holds[-1].histogram.data_points) if holds else 0


def test_a_collector_gets_spans_links_and_metrics(collector: Collector, tmp_path: Path) -> None:
    """``opentelemetry-instrument uvicorn`` exports waits, leases and metrics, with a link to the holder's span."""
    (tmp_path / "shop.py").write_text(APPLICATION.format(url=fresh_url()))
    port = free_port()
    command = [str(Path(sys.executable).with_name("opentelemetry-instrument")), "uvicorn"]
    command += [f"--app-dir={tmp_path}", f"--port={port}", "shop:app"]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_METRIC_EXPORT_INTERVAL": "50",
    }

    def done() -> bool:
        with urlopen(Request(f"http://127.0.0.1:{port}", method="POST")) as response:
            return bool(response.read() == b'"done"')

    with (tmp_path / "log").open("wb") as log:
        site = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        eventually(done, despite=URLError)
        spans = {"first", "second", "weblock wait"}
        eventually(lambda: spans <= {span.name for span in collector.spans})
        eventually(lambda: ended(collector) == 2)
    except AssertionError:
        pytest.fail((tmp_path / "log").read_text())
    finally:
        site.terminate()
        site.wait(PATIENCE)
    holder, waiter = collector.span("first"), collector.span("second")
    wait = collector.span("weblock wait")
    assert (wait.trace_id, wait.parent_span_id) == (waiter.trace_id, waiter.span_id)
    (link,) = wait.links
    assert (link.trace_id, link.span_id) == (holder.trace_id, holder.span_id)
    for span in (holder, waiter):
        assert [event.name for event in span.events] == ["weblock.acquired", "weblock.released"]
        assert attributes(span.events[0])["weblock.key"] == "item:7"
    last = {metric.name: metric for metric in collector.metrics}
    (acquired,) = last["weblock.lock.acquisitions"].sum.data_points
    assert acquired.as_int == 2
    assert attributes(acquired)["weblock.outcome"] == "acquired"
    (waited,) = last["weblock.lock.wait.duration"].histogram.data_points
    assert waited.count == 2
    assert waited.sum > 0
    assert last["weblock.lock.wait.duration"].unit == "s"
