"""Prints the spans and metrics that it receives by OTLP: python3 receiver.py PORT. For a first look, not for production."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Handler(BaseHTTPRequestHandler):
    """Accepts every request."""

    def do_POST(self) -> None:  # noqa: N802 - the base class finds methods by the verb
        """Print what the request has, and respond with an empty message: everything was accepted."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        name = span.name.rpartition("/")[2]
                        print(f"span {name} parent={span.parent_span_id.hex() or 'none'}", flush=True)
        else:
            for metrics in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for group in metrics.scope_metrics:
                    for metric in group.metrics:
                        print(f"metric {metric.name}", flush=True)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""


HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
