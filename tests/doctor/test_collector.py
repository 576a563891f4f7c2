"""What doctor reports of an OpenTelemetry collector."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from dra_agent.doctor import CheckContext, Finding, Severity, run_checks
from dra_agent.otlp.settings import OtlpSettings
from otlp.collector import Collector, Reply


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


def findings(context: CheckContext, settings: OtlpSettings) -> list[Finding]:
    context.otlp = settings
    return [finding for finding in run_checks(context) if finding.check == "OpenTelemetry"]


def test_a_collector_that_accepts_both_signals_passes(healthy_host: CheckContext, collector: Collector) -> None:
    found = findings(healthy_host, OtlpSettings(endpoint=collector.url))
    assert [finding.message for finding in found] == ["the collector accepts metrics", "the collector accepts traces"]
    assert {finding.severity for finding in found} == {Severity.OK}
    assert len(findings(healthy_host, OtlpSettings(endpoint=collector.url, traces=False))) == 1
    assert findings(healthy_host, OtlpSettings()) == []


def test_a_collector_that_refuses_is_named(healthy_host: CheckContext, collector: Collector) -> None:
    collector.replies = [Reply(), Reply(401)]
    accepted, refused = findings(healthy_host, OtlpSettings(endpoint=collector.url))
    assert (accepted.severity, refused.severity) == (Severity.OK, Severity.WARNING)
    assert refused.message == "traces are not exported: it returns 401: it requires credentials (otlp.headers_file)"
    assert refused.where == f"collector {collector.url}"


def test_a_collector_that_hangs_is_named(
    healthy_host: CheckContext, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_agent.doctor.collector.TIMEOUT_S", 0.2)
    collector.replies = [Reply(hangs=True)]
    (found,) = findings(healthy_host, OtlpSettings(endpoint=collector.url, traces=False))
    assert found.message == "metrics are not exported: no response within the timeout"


def test_a_port_without_a_collector_is_named(healthy_host: CheckContext) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        (found,) = findings(healthy_host, OtlpSettings(endpoint=url, metrics=False))
    assert found.message == "traces are not exported: no connection: Connection refused" and url in found.where
