"""The publisher's part of the metrics: read when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from dra_agent.publish import PublisherStats

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_PREFIX = "dra_agent_publish"

KINDS = (
    "conflict",
    "dropped_fields",
    "forbidden",
    "invalid_object",
    "not_found",
    "permanent",
    "retryable",
    "throttled",
    "unauthorized",
    "unavailable",
    "untold_taints",
)
"""Every `kind` of dra_agent_publish_errors: a series that begins at 1 hides its first increase."""
METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")


class PublishMetrics:
    """A collector for `Metrics.add`."""

    def __init__(self, read: Callable[[], PublisherStats], requests: Mapping[str, int]) -> None:
        """`requests` are those to the API server, by HTTP method; it is read at each scrape."""
        self._read = read
        self._requests = requests

    def describe(self) -> Iterator[Metric]:
        """Nothing is read before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Read the publisher."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        reading = self._read()
        writes = CounterMetricFamily(f"{_PREFIX}_writes", "ResourceSlices that were written.", labels=["operation"])
        for operation, count in reading.writes.items():
            writes.add_metric([operation], count)
        errors = CounterMetricFamily(f"{_PREFIX}_errors", "Failures to publish, by kind.", labels=["kind"])
        for kind, count in {**dict.fromkeys(KINDS, 0), **reading.errors}.items():
            errors.add_metric([kind], count)
        requests = CounterMetricFamily(
            "dra_agent_api_requests", "Requests to the API server, by HTTP method.", labels=["method"]
        )
        for method, count in {**dict.fromkeys(METHODS, 0), **self._requests}.items():
            requests.add_metric([method], count)
        yield from (writes, errors, requests)
        yield GaugeMetricFamily(f"{_PREFIX}_slices", "ResourceSlices of this node and driver.", value=reading.slices)
        yield GaugeMetricFamily(
            f"{_PREFIX}_pending_pools", "Pools whose slices are not as they should be.", value=len(reading.pending)
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}_left_out_devices", "Devices that the API would refuse.", value=reading.left_out
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}_behind_seconds",
            "Time since changes at the API server were last heard of; 0 while they are.",
            value=reading.behind,
        )
        if reading.last_write is not None:
            yield GaugeMetricFamily(
                f"{_PREFIX}_last_write_timestamp_seconds", "When a slice was last written.", value=reading.last_write
            )
