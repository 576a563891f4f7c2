"""Metrics and spans in the messages of OTLP, decoded with the official types, compared with what /metrics shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1 import metrics_pb2
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from dra_agent.metrics.api_server import PublishMetrics
from dra_agent.metrics.reclaim import ReclaimSnapshot
from dra_agent.metrics.registry import Metrics
from dra_agent.metrics.snapshot import DeviceInfo, MetricsSnapshot
from dra_agent.otlp.encoding import encode_metrics, rejected_points, resource
from dra_agent.publish import PublisherStats
from otlp.collector import attributes, samples

STATS = PublisherStats(
    writes={"create": 2}, errors={}, slices=3, pending=(), last_write=1.5e9, lag_s=0.25, unpublishable=0, problems=()
)
START_NS, NOW_NS = 10**18, 2 * 10**18


@pytest.fixture
def metrics() -> Metrics:
    device = DeviceInfo("gpu-0", "n/gpu", "free", product='H100 "x"\n', family="gpu")
    metrics = Metrics(lambda: MetricsSnapshot(devices=(device,), reclaim=ReclaimSnapshot()))
    metrics.add(PublishMetrics(lambda: STATS, {"GET": 7}))
    metrics.request("prepare", "ok", 0.003)
    metrics.request("prepare", "retryable", 99.0)
    metrics.observe_phase("cdi", 0.0001)
    return metrics


def decoded(families: Iterable[Metric], *, names_claims: bool = True) -> list[metrics_pb2.Metric]:
    def start_of(name: str, labels: Mapping[str, str], value: float, time_ns: int) -> int:
        return START_NS

    body, points = encode_metrics(families, resource({"a": "b"}), start_of, NOW_NS, names_claims=names_claims)
    request = ExportMetricsServiceRequest.FromString(body)
    assert attributes(request.resource_metrics[0].resource) == {"a": "b"}
    assert request.resource_metrics[0].scope_metrics[0].scope.name == "dra_agent"
    found = list(request.resource_metrics[0].scope_metrics[0].metrics)
    assert points == sum(len(getattr(one, one.WhichOneof("data") or "").data_points) for one in found)
    return found


def test_series_are_those_of_the_exposition(metrics: Metrics) -> None:
    shown = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render()[0].decode())
        for sample in family.samples
        if not sample.name.startswith("process_")
    }
    exported = {
        (name, frozenset((key, "+Inf" if key == "le" and value == "inf" else value) for key, value in labels)): value
        for name, labels, value in samples(decoded(metrics.collect()))
        if not name.startswith("process_")
    }
    assert exported == shown and len(shown) > 100


def test_each_kind_has_its_type_unit_and_times(metrics: Metrics) -> None:
    found = {metric.name: metric for metric in decoded(metrics.collect())}
    counter = found["dra_agent_dra_requests_total"]
    assert counter.sum.is_monotonic and counter.unit == ""
    assert counter.sum.aggregation_temporality == metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
    assert {(point.start_time_unix_nano, point.time_unix_nano) for point in counter.sum.data_points} == {
        (START_NS, NOW_NS)
    }
    histogram = found["dra_agent_dra_request_duration_seconds"]
    assert histogram.unit == "s" and histogram.description
    assert histogram.histogram.aggregation_temporality == metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
    prepare = next(point for point in histogram.histogram.data_points if attributes(point) == {"operation": "prepare"})
    assert (prepare.count, sum(prepare.bucket_counts)) == (2, 2) and prepare.sum == pytest.approx(99.003)
    assert len(prepare.bucket_counts) == len(prepare.explicit_bounds) + 1 and prepare.bucket_counts[-1] == 1
    assert prepare.start_time_unix_nano == START_NS
    gauge = found["dra_agent_publish_behind_seconds"]
    assert (gauge.WhichOneof("data"), gauge.unit, gauge.gauge.data_points[0].as_double) == ("gauge", "s", 0.25)
    assert found["dra_agent_build_info"].WhichOneof("data") == "gauge"
    assert found["process_virtual_memory_bytes"].unit == "By"


def test_series_that_name_a_claim_can_be_left_out() -> None:
    claims = GaugeMetricFamily("dra_agent_claim_power_watts", "Power.", labels=["namespace", "claim"])
    claims.add_metric(["team", "secret"], 71)
    states = GaugeMetricFamily("dra_agent_claims", "Claims.", labels=["state"])
    states.add_metric(["prepared"], 1)
    assert [metric.name for metric in decoded([claims, states])] == [
        "dra_agent_claim_power_watts",
        "dra_agent_claims",
    ]
    assert [metric.name for metric in decoded([claims, states], names_claims=False)] == ["dra_agent_claims"]


def test_a_counter_without_series_is_left_out() -> None:
    assert decoded([CounterMetricFamily("dra_agent_x", "X.", labels=["a"])]) == []


@pytest.mark.parametrize("body", [b"", b"ok\n", b"\xff" * 20])
def test_a_response_that_is_not_a_message_rejects_nothing(body: bytes) -> None:
    assert rejected_points(body) == (0, "")


def test_a_partial_success_is_read() -> None:
    response = ExportMetricsServiceResponse()
    response.partial_success.rejected_data_points = 3
    response.partial_success.error_message = "too old"
    assert rejected_points(response.SerializeToString()) == (3, "too old")
