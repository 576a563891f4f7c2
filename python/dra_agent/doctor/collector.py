"""Check of the export to OpenTelemetry: does the collector respond, and does it accept what the agent would send."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from dra_agent.deadline import Deadline
from dra_agent.doctor.context import CheckContext
from dra_agent.doctor.finding import Finding, ok, warning

TIMEOUT_S = 5.0
_EFFECT = "the agent serves claims without it; dra_agent_otlp_exports_total counts its failures"


def check_collector(context: CheckContext) -> Iterator[Finding]:
    """Send an empty request for each signal that is exported; nothing without an endpoint."""
    settings = context.otlp
    if settings is None or not settings.endpoint:
        return
    # Half a megabyte of modules, only where there is a collector.
    from dra_agent.otlp.endpoint import parse_endpoint
    from dra_agent.otlp.sender import METRICS_PATH, TRACES_PATH, Sender, SendError

    if find_spec("opentelemetry") is None or find_spec("opentelemetry.proto") is None:
        yield warning(
            "nothing is exported: the Python package opentelemetry-proto is missing",
            "otlp.endpoint",
            "pip install 'dra-agent[otlp]'; the agent does not start without it",
        )
        return
    endpoint = parse_endpoint(settings.endpoint)
    sender = Sender(endpoint, settings)
    for signal, path, is_exported in (
        ("metrics", METRICS_PATH, settings.metrics),
        ("traces", TRACES_PATH, settings.traces),
    ):
        if not is_exported:
            continue
        try:
            # An empty message is a valid request without telemetry.
            sender.post(path, b"", Deadline.of(min(TIMEOUT_S, settings.timeout)))
        except SendError as error:
            yield warning(f"{signal} are not exported: {error.message}", error.where or "", _EFFECT)
        else:
            yield ok(f"the collector accepts {signal}", str(endpoint))
