"""An OTLP receiver on HTTP, which decodes requests with the official message types and fails as a test requests."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from eventually import eventually


@dataclass
class Reply:
    """How the collector responds to one request."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    hangs: bool = False
    """Until the collector is closed."""
    drips: bool = False
    """A byte of a response without an end from time to time."""


@dataclass
class Collector:
    """The receiver, and what it has received."""

    tls: ssl.SSLContext | None = None
    replies: list[Reply] = field(default_factory=list)
    """For the next requests; 200 after them."""
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    metrics: list[ExportMetricsServiceRequest] = field(default_factory=list)
    traces: list[ExportTraceServiceRequest] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls is not None else ''}://127.0.0.1:{self.port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        assert request.headers["Content-Type"] == "application/x-protobuf"
        reply = self.replies.pop(0) if self.replies else Reply()
        self.paths.append(request.path)
        self.headers.append(dict(request.headers))
        if reply.hangs:
            self.closing.wait()
            return
        if reply.drips:
            request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not self.closing.wait(0.05):
                request.wfile.write(b"x")
            return
        if reply.status == 200 and request.path.endswith("/v1/metrics"):
            self.metrics.append(ExportMetricsServiceRequest.FromString(body))
        elif reply.status == 200:
            self.traces.append(ExportTraceServiceRequest.FromString(body))
        request.send_response(reply.status)
        for name, value in reply.headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(reply.body)))
        request.end_headers()
        request.wfile.write(reply.body)

    def spans(self) -> list[Span]:
        """Return all spans in the order of their arrival."""
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def wait_for_spans(self, number: int) -> list[Span]:
        eventually(lambda: len(self.spans()) >= number, lambda: [span.name for span in self.spans()])
        return self.spans()

    def last_metrics(self) -> list[Metric]:
        """Return the metrics of the last request."""
        return [
            metric
            for resource in self.metrics[-1].resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def attributes(of: Any) -> dict[str, Any]:
    """Return the attributes of a resource, span or point as values of Python."""
    return {one.key: _value(one.value) for one in of.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def samples(metrics: list[Metric]) -> Iterator[tuple[str, frozenset[tuple[str, str]], float]]:
    """Return series as Prometheus has them: name, labels, value."""
    for metric in metrics:
        kind = metric.WhichOneof("data")
        if kind == "histogram":
            for histogram in metric.histogram.data_points:
                labels = attributes(histogram).items()
                below = 0
                for bound, count in zip(
                    (*histogram.explicit_bounds, float("inf")), histogram.bucket_counts, strict=True
                ):
                    below += count
                    yield f"{metric.name}_bucket", frozenset({*labels, ("le", repr(bound))}), below
                yield f"{metric.name}_sum", frozenset(labels), histogram.sum
                yield f"{metric.name}_count", frozenset(labels), histogram.count
        else:
            for point in (metric.sum if kind == "sum" else metric.gauge).data_points:
                yield metric.name, frozenset(attributes(point).items()), point.as_double
