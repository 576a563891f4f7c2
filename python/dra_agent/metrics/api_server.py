"""Metrics of the agent's writes to the API server: slices, claim status and Events. Collected at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from dra_agent.publish import PublisherStats
from dra_agent.status import ClaimStatusWriter, EventRecorder

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
"""Every `kind` of dra_agent_publish_errors: a series that starts at 1 hides its first increase."""
METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")


class PublishMetrics:
    """Collector of slice writes and of API requests, for `Metrics.add`."""

    def __init__(self, read: Callable[[], PublisherStats], requests: Mapping[str, int]) -> None:
        """`requests` has the number of requests to the API server by HTTP method. It is read at each scrape."""
        self._read = read
        self._requests = requests

    def describe(self) -> Iterator[Metric]:
        """Return no metrics: nothing is read before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the publisher."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        stats = self._read()
        writes = CounterMetricFamily(f"{_PREFIX}_writes", "ResourceSlices that were written.", labels=["operation"])
        for operation, count in stats.writes.items():
            writes.add_metric([operation], count)
        errors = CounterMetricFamily(f"{_PREFIX}_errors", "Failures to publish, by kind.", labels=["kind"])
        for kind, count in {**dict.fromkeys(KINDS, 0), **stats.errors}.items():
            errors.add_metric([kind], count)
        requests = CounterMetricFamily(
            "dra_agent_api_requests", "Requests to the API server, by HTTP method.", labels=["method"]
        )
        for method, count in {**dict.fromkeys(METHODS, 0), **self._requests}.items():
            requests.add_metric([method], count)
        yield from (writes, errors, requests)
        yield GaugeMetricFamily(f"{_PREFIX}_slices", "ResourceSlices of this node and driver.", value=stats.slices)
        yield GaugeMetricFamily(
            f"{_PREFIX}_pending_pools", "Pools that differ from the desired slices.", value=len(stats.pending)
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}_left_out_devices", "Devices that exceed a limit of the API.", value=stats.unpublishable
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}_behind_seconds",
            "Time since the watch of the API server broke; 0 while it is open.",
            value=stats.lag_s,
        )
        if stats.last_write is not None:
            yield GaugeMetricFamily(
                f"{_PREFIX}_last_write_timestamp_seconds", "When a slice was last written.", value=stats.last_write
            )


class ReportingMetrics:
    """Collector of claim status and Events, for `Metrics.add`."""

    def __init__(self, status: ClaimStatusWriter | None, events: EventRecorder) -> None:
        self._status = status
        self._events = events

    def describe(self) -> Iterator[Metric]:
        """Return no metrics: nothing is read before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the writers."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield CounterMetricFamily(
            "dra_agent_events_written", "Events, and counts of Events, that were written.", value=self._events.written
        )
        yield CounterMetricFamily(
            "dra_agent_events_lost", "Events that were recorded but not written.", value=self._events.lost
        )
        if self._status is None:
            return
        yield CounterMetricFamily(
            "dra_agent_claim_status_writes", "Claims with a written status.devices.", value=self._status.written
        )
        yield CounterMetricFamily(
            "dra_agent_claim_status_errors",
            "Failed attempts to write the status of a claim.",
            value=self._status.failed,
        )
        yield GaugeMetricFamily(
            "dra_agent_claim_status_waiting", "Claims with a pending status write.", value=self._status.waiting
        )
