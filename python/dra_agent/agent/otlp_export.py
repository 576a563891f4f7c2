"""Composition of the OpenTelemetry export, from the configuration. Imported only if an endpoint is configured."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dra_agent import __version__
from dra_agent.agent.config import Config
from dra_agent.errors import UsageError
from dra_agent.otlp.endpoint import parse_endpoint
from dra_agent.otlp.spans import SpanQueue, Tracer

if TYPE_CHECKING:
    from dra_agent.metrics.registry import Metrics
    from dra_agent.otlp.exporter import Exporter
    from dra_agent.prepare.ledger import LedgerEntry

Entries = Callable[[], list["LedgerEntry"]]


class OtlpExport:
    """The tracer, and the thread that exports, of one agent."""

    def __init__(self, config: Config) -> None:
        """Check what the configuration cannot check. Raises UsageError for a missing library."""
        if find_spec("opentelemetry") is None or find_spec("opentelemetry.proto") is None:
            raise UsageError(
                "the Python package opentelemetry-proto is missing",
                where="otlp.endpoint",
                hint="install the agent with its extra: pip install 'dra-agent[otlp]'",
            )
        self._config = config
        self._endpoint = parse_endpoint(config.otlp.endpoint)
        self._names_claims = claim_names_allowed(config)
        self.tracer = Tracer(SpanQueue(), names_claims=self._names_claims) if config.otlp.traces else None
        """None: no spans."""
        self._exporter: Exporter | None = None

    def start(self, metrics: Metrics, entries: Entries) -> None:
        """Start to export; `entries` are the claims in the ledger. Raises UsageError for an unusable file."""
        from dra_agent.agent.counter_starts import counter_starts
        from dra_agent.metrics.otlp import OtlpMetrics
        from dra_agent.otlp.exporter import Exporter
        from dra_agent.otlp.sender import Sender

        settings = self._config.otlp
        sender = Sender(self._endpoint, settings)
        sender.check_files()
        exporter = self._exporter = Exporter(
            sender,
            resource_attributes(self._config),
            interval_s=settings.interval,
            timeout_s=settings.timeout,
            collect=metrics.collect if settings.metrics else None,
            start_of=counter_starts(entries).read,
            spans=None if self.tracer is None else self.tracer.queue,
            names_claims=self._names_claims,
        )
        metrics.add(OtlpMetrics(lambda: exporter.stats))
        if self.tracer is not None:
            metrics.follow_phases(self.tracer.observe_phase)
        exporter.start()

    def stop(self) -> None:
        """Export what is left, within two seconds."""
        if self._exporter is not None:
            self._exporter.stop()


def claim_names_allowed(config: Config) -> bool:
    """Return whether the collector may get the names of claims: `claim_labels` of `[telemetry]`."""
    labels = config.telemetry.claim_labels
    return labels == "on" or (labels == "auto" and parse_endpoint(config.otlp.endpoint).is_private)


def resource_attributes(config: Config) -> dict[str, str]:
    """Return what identifies this agent; those of the configuration replace its own."""
    node = "host.name" if config.standalone else "k8s.node.name"
    own = {
        "service.name": "dra-agent",
        "service.version": __version__,
        # Of two agents of a rolling update, each has its own; a restart keeps it.
        "service.instance.id": config.pod_uid or config.node,
        node: config.node,
        "dra_agent.driver": config.driver_name,
    }
    return own | config.otlp.attributes
