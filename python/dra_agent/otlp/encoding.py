"""Metrics and spans as OTLP requests, with the message types of opentelemetry-proto."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2

from dra_agent import __version__

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.samples import Sample

    from dra_agent.otlp.spans import Attribute, Span

CLAIM_LABEL = "claim"
"""Series with this label name a claim."""
StartOf = Callable[[str, Mapping[str, str], float, int], int]
"""Returns when a counter was 0, by the name and labels of its series, and the value and time of the point.

Times are nanoseconds since the epoch; 0: not known.
"""

_SCOPE = InstrumentationScope(name="dra_agent", version=__version__)
_UNITS = {
    "seconds": "s",
    "bytes": "By",
    "joules": "J",
    "watts": "W",
    "celsius": "Cel",
    "hertz": "Hz",
    "ratio": "1",
}
"""Units (UCUM) by the end of a name, without "_total"."""
_KINDS = {"internal": trace_pb2.Span.SPAN_KIND_INTERNAL, "server": trace_pb2.Span.SPAN_KIND_SERVER}
_SAMPLED = 0x01
_HAS_IS_REMOTE = trace_pb2.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_IS_REMOTE = trace_pb2.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK


def resource(attributes: Mapping[str, str]) -> Resource:
    """Return the resource: what sends telemetry."""
    return Resource(attributes=_attributes(attributes))


def encode_metrics(
    families: Iterable[Metric], of: Resource, start_of: StartOf, now_ns: int, *, names_claims: bool
) -> tuple[bytes, int]:
    """Return a request with the series under their names in /metrics, and the number of points.

    Without `names_claims`, series that name a claim are left out.
    """
    request = ExportMetricsServiceRequest()
    scope = request.resource_metrics.add(resource=of).scope_metrics.add(scope=_SCOPE)
    points = 0
    for family in families:
        samples = [sample for sample in family.samples if names_claims or CLAIM_LABEL not in sample.labels]
        if not samples:
            continue
        if family.type == "histogram":
            points += _add_histogram(scope.metrics.add(), family, samples, start_of, now_ns)
        else:
            points += _add_numbers(scope.metrics, family, samples, start_of, now_ns)
    return request.SerializeToString(), points


def encode_spans(spans: Sequence[Span], of: Resource) -> bytes:
    """Return a request with ended spans."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add(resource=of).scope_spans.add(scope=_SCOPE)
    for span in spans:
        added = scope.spans.add(
            trace_id=span.trace_id,
            span_id=span.span_id,
            parent_span_id=span.parent_id,
            trace_state=span.state,
            flags=_SAMPLED | _HAS_IS_REMOTE | (_IS_REMOTE if span.is_parent_remote else 0),
            name=span.name,
            kind=_KINDS[span.kind],
            start_time_unix_nano=span.start_ns,
            end_time_unix_nano=span.end_ns,
            attributes=_attributes(span.attributes),
        )
        if span.error:
            added.attributes.extend(_attributes({"error.type": span.error}))
            added.status.code = trace_pb2.Status.STATUS_CODE_ERROR
            added.status.message = span.message
    return request.SerializeToString()


def rejected_points(body: bytes) -> tuple[int, str]:
    """Return how many points the collector rejected of a request that it accepted, and why."""
    partial = _decoded(ExportMetricsServiceResponse, body).partial_success
    return partial.rejected_data_points, partial.error_message


def rejected_spans(body: bytes) -> tuple[int, str]:
    """Return how many spans the collector rejected of a request that it accepted, and why."""
    partial = _decoded(ExportTraceServiceResponse, body).partial_success
    return partial.rejected_spans, partial.error_message


def _decoded(kind: Any, body: bytes) -> Any:
    try:
        return kind.FromString(body)
    except DecodeError:  # some collectors respond with text
        return kind()


def _add_numbers(metrics: Any, family: Metric, samples: Sequence[Sample], start_of: StartOf, now_ns: int) -> int:
    """Add one metric for each name of the samples: the name of a counter ends in "_total", of an info in "_info"."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    for name, same in by_name.items():
        metric = metrics.add(name=name, description=family.documentation, unit=_unit(name))
        is_counter = family.type == "counter"
        if is_counter:
            metric.sum.is_monotonic = True
            metric.sum.aggregation_temporality = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
        points = metric.sum.data_points if is_counter else metric.gauge.data_points
        for sample in same:
            points.add(
                attributes=_attributes(sample.labels),
                start_time_unix_nano=start_of(name, sample.labels, sample.value, now_ns) if is_counter else 0,
                time_unix_nano=now_ns,
                as_double=sample.value,
            )
    return len(samples)


def _add_histogram(metric: Any, family: Metric, samples: Sequence[Sample], start_of: StartOf, now_ns: int) -> int:
    """Add a histogram. Prometheus counts observations up to a bound, OTLP those between two bounds."""
    metric.name, metric.description, metric.unit = family.name, family.documentation, _unit(family.name)
    metric.histogram.aggregation_temporality = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
    series: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        found = series.setdefault(tuple(sorted(labels.items())), {"labels": labels, "buckets": {}})
        suffix = sample.name.removeprefix(family.name)
        if suffix == "_bucket":
            found["buckets"][float(sample.labels["le"])] = sample.value
        else:
            found[suffix] = sample.value
    for one in series.values():
        bounds = sorted(one["buckets"])
        counts = [int(one["buckets"][bound]) for bound in bounds]
        metric.histogram.data_points.add(
            attributes=_attributes(one["labels"]),
            start_time_unix_nano=start_of(family.name, one["labels"], one["_count"], now_ns),
            time_unix_nano=now_ns,
            count=int(one["_count"]),
            sum=one["_sum"],
            explicit_bounds=bounds[:-1],  # the last is infinite
            bucket_counts=[count - below for below, count in zip([0, *counts], counts, strict=False)],
        )
    return len(series)


def _unit(name: str) -> str:
    return _UNITS.get(name.removesuffix("_total").rpartition("_")[2], "")


def _attributes(values: Mapping[str, Attribute]) -> list[KeyValue]:
    return [KeyValue(key=name, value=_value(value)) for name, value in values.items()]


def _value(value: Attribute) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=one) for one in value]))
