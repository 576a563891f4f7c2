"""An OpenTelemetry Collector that writes what it receives by OTLP over HTTP to a file, as OTLP in JSON."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import yaml

from . import build, prerequisites
from .api import Object
from .cluster import Cluster
from .process import LONG_TIMEOUT_S, Process, until

MODULE = build.Module("otel-collector", "go.opentelemetry.io/collector/otelcol", {"otel-collector": "."})
PORT = 4318


def program() -> Path:
    """Return the program; builds it if it is missing. MissingError without Go."""
    where = build.directory(MODULE)
    prerequisites.check(go=not (where / "otel-collector").exists())
    build.build(MODULE, "otel-collector", where)
    return where / "otel-collector"


class OtelCollector:
    """The collector with a pipeline of traces and one of metrics."""

    def __init__(self, cluster: Cluster) -> None:
        """Write its configuration."""
        self.address = cluster.cluster_dir.webhook_address
        directory = cluster.directory / "otel-collector"
        directory.mkdir(exist_ok=True)
        self._output = directory / "received.jsonl"
        pipeline = {"receivers": ["otlp"], "exporters": ["file"]}
        configuration = {
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"{self.address}:{PORT}"}}}},
            "exporters": {"file": {"path": str(self._output), "flush_interval": "100ms"}},
            "service": {
                "pipelines": {"traces": pipeline, "metrics": pipeline},
                "telemetry": {"metrics": {"level": "none"}},
            },
        }
        (directory / "config.yaml").write_text(yaml.safe_dump(configuration))
        self.process = Process(
            "otel-collector",
            [str(program()), f"--config=file:{directory / 'config.yaml'}"],
            directory / "otel-collector.log",
            cluster.directory,
        )

    @property
    def endpoint(self) -> str:
        """The endpoint for the agent's configuration."""
        return f"http://{self.address}:{PORT}"

    def start(self) -> None:
        """Start it; return when it receives requests."""
        self.process.start()
        until(self._responds, "the collector responds")

    def spans(self) -> list[Object]:
        """Return the received spans; each has the attributes of its resource as `resource`."""
        return [
            {**span, "attributes": _attributes(span), "resource": _attributes(received["resource"])}
            for received in self._received("resourceSpans")
            for scope in received["scopeSpans"]
            for span in scope["spans"]
        ]

    def metrics(self) -> list[Object]:
        """Return the received metrics in the order of the exports, likewise."""
        return [
            {**metric, "resource": _attributes(received["resource"])}
            for received in self._received("resourceMetrics")
            for scope in received["scopeMetrics"]
            for metric in scope["metrics"]
        ]

    def _received(self, signal: str) -> list[Object]:
        text = self._output.read_text() if self._output.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last line may not be complete
        return [received for line in lines for received in json.loads(line).get(signal, [])]

    def _responds(self) -> bool:
        self.process.check_running()
        connection = http.client.HTTPConnection(self.address, PORT, timeout=LONG_TIMEOUT_S)
        try:
            connection.request("POST", "/v1/traces", "{}", {"Content-Type": "application/json"})
            return connection.getresponse().status == 200
        finally:
            connection.close()


def _attributes(entry: Object) -> dict[str, object]:
    """Return attributes by key; values as JSON has them, so integers are texts."""
    return {one["key"]: next(iter(one["value"].values()), None) for one in entry.get("attributes", [])}
