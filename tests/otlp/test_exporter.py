"""When the thread exports, what it does while the collector fails, and what it drops."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from prometheus_client.core import GaugeMetricFamily, Metric

from dra_agent.otlp import exporter as exporters
from dra_agent.otlp.endpoint import parse_endpoint
from dra_agent.otlp.exporter import SPAN_INTERVAL_S, STOP_TIMEOUT_S, Exporter
from dra_agent.otlp.sender import METRICS_PATH, TRACES_PATH, Sender
from dra_agent.otlp.settings import OtlpSettings
from dra_agent.otlp.spans import SpanQueue, Tracer
from dra_agent.retry import MAX_RETRY_AFTER_S
from eventually import DEADLINE_S, eventually
from otlp.collector import Collector, Reply

INTERVAL_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def families() -> Iterator[Metric]:
    yield GaugeMetricFamily("dra_agent_x", "X.", value=1)


class Rig:
    """An exporter whose clock and turns are those of the test."""

    def __init__(self, collector: Collector, queue: SpanQueue | None = None, **more: Any) -> None:
        self.clock = Clock()
        self.queue = SpanQueue() if queue is None else queue
        self.tracer = Tracer(self.queue, names_claims=False)
        settings: dict[str, Any] = {
            "timeout_s": DEADLINE_S,
            "collect": families,
            "spans": self.queue,
            "interval_s": INTERVAL_S,
        } | more
        self.exporter = Exporter(
            Sender(parse_endpoint(collector.url), OtlpSettings()),
            {},
            start_of=lambda: lambda name, labels, value, time_ns: 0,
            names_claims=False,
            now=self.clock,
            jitter=lambda: 0.0,
            **settings,
        )

    def span(self, name: str = "s") -> None:
        with self.tracer.begin(name):
            pass

    def after(self, seconds: float) -> float:
        self.clock.now_s += seconds
        return self.exporter.export_due()


def test_each_signal_has_its_interval(collector: Collector) -> None:
    rig = Rig(collector)
    rig.span()
    assert rig.after(0) == SPAN_INTERVAL_S
    assert collector.paths == [TRACES_PATH, METRICS_PATH]
    assert rig.after(SPAN_INTERVAL_S) == SPAN_INTERVAL_S, "without spans there is no request"
    rig.span()
    rig.after(INTERVAL_S)
    assert collector.paths == [TRACES_PATH, METRICS_PATH] * 2
    stats = rig.exporter.stats
    assert stats.exports == {
        ("metrics", "ok"): 2,
        ("metrics", "failed"): 0,
        ("traces", "ok"): 2,
        ("traces", "failed"): 0,
    }
    assert (stats.dropped_spans, stats.queued_spans) == (0, 0)


def test_spans_wait_while_the_collector_refuses_them(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig(collector, collect=None)
    rig.span("first")
    collector.replies += [Reply(503, {"Retry-After": "30"}), Reply(503)]
    assert rig.after(0) == 30.0
    rig.span("second")
    rig.after(29.9)
    assert len(collector.paths) == 1, "Retry-After was not waited for"
    assert rig.after(0.1) == pytest.approx(1.0), "the second delay without jitter, and without Retry-After"
    assert rig.exporter.stats.queued_spans == 2
    rig.after(1.0)
    assert [span.name for span in collector.spans()] == ["first", "second"]
    assert rig.exporter.stats.exports["traces", "failed"] == 2
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["telemetry not exported", "telemetry is exported again"], "one line for one reason"


def test_retry_after_has_a_limit(collector: Collector) -> None:
    rig = Rig(collector, spans=None)
    collector.replies.append(Reply(429, {"Retry-After": "999999"}))
    assert rig.after(0) == MAX_RETRY_AFTER_S


def test_spans_that_are_rejected_are_dropped_and_counted(collector: Collector) -> None:
    rig = Rig(collector, collect=None)
    rig.span()
    collector.replies.append(Reply(400))
    rig.after(0)
    assert (rig.exporter.stats.dropped_spans, rig.exporter.stats.queued_spans) == (1, 0)
    partial = ExportTraceServiceResponse()
    partial.partial_success.rejected_spans = 2
    rig.span()
    rig.span()
    rig.span()
    collector.replies.append(Reply(body=partial.SerializeToString()))
    rig.after(INTERVAL_S)
    assert rig.exporter.stats.dropped_spans == 3


def test_one_signal_that_fails_does_not_delay_the_other(collector: Collector) -> None:
    rig = Rig(collector)
    rig.span()
    collector.replies.append(Reply(404))
    rig.after(0)
    assert collector.paths == [TRACES_PATH, METRICS_PATH] and len(collector.metrics) == 1


def test_the_queue_is_bounded_and_drops_the_oldest(collector: Collector) -> None:
    rig = Rig(collector, SpanQueue(limit=3), collect=None)
    for number in range(5):
        rig.span(str(number))
    assert rig.exporter.stats.dropped_spans == 2
    collector.replies.append(Reply(503))
    rig.after(0)
    rig.span("5")
    assert (len(rig.queue), rig.exporter.stats.dropped_spans) == (3, 3)
    rig.after(INTERVAL_S)
    assert [span.name for span in collector.spans()] == ["3", "4", "5"]


def test_many_spans_need_several_requests(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporters, "MAX_BATCH_SPANS", 2)
    rig = Rig(collector, collect=None)
    for number in range(5):
        rig.span(str(number))
    rig.after(0)
    assert [span.name for span in collector.spans()] == list("01234") and len(collector.paths) == 3


def test_a_defect_ends_no_later_export(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    calls = iter([True, False])

    def collect() -> Iterator[Metric]:
        if next(calls):
            raise ZeroDivisionError
        return families()

    rig = Rig(collector, collect=collect)
    assert rig.after(0) == SPAN_INTERVAL_S and "telemetry not exported" in caplog.text
    rig.after(INTERVAL_S)
    assert len(collector.metrics) == 1


def test_a_stop_exports_what_is_left(collector: Collector) -> None:
    rig = Rig(collector)
    rig.exporter.start()
    eventually(lambda: len(collector.metrics) == 1)
    rig.span()
    rig.exporter.stop()
    assert [span.name for span in collector.spans()] == ["s"] and len(collector.metrics) == 2


def test_a_stop_does_not_wait_for_a_collector_that_hangs(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exporters, "STOP_TIMEOUT_S", 0.05)
    collector.replies += [Reply(hangs=True)]
    rig = Rig(collector, collect=None)
    rig.span()
    rig.exporter.start()
    eventually(lambda: collector.paths)
    rig.span("left")
    rig.exporter.stop()  # without a bound, this hangs as long as the collector
    assert "are lost" in caplog.text


def test_a_span_ends_without_waiting_for_the_collector(collector: Collector) -> None:
    collector.replies += [Reply(hangs=True)]
    rig = Rig(collector, collect=None)
    rig.span()
    rig.exporter.start()
    eventually(lambda: collector.paths)
    for _ in range(5000):
        rig.span()
    assert rig.exporter.stats.dropped_spans > 0
    assert STOP_TIMEOUT_S < 5
