"""What is told to the cluster, as part of the metrics: read when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dra_agent.status import ClaimStatusWriter, EventRecorder

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class ReportingMetrics:
    """A collector for `Metrics.add`."""

    def __init__(self, status: ClaimStatusWriter | None, events: EventRecorder) -> None:
        self._status = status
        self._events = events

    def describe(self) -> Iterator[Metric]:
        """Nothing is read before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Read the counts."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield CounterMetricFamily(
            "dra_agent_events_written", "Events, and counts of Events, that were written.", value=self._events.written
        )
        yield CounterMetricFamily(
            "dra_agent_events_lost", "Events that were recorded and not written.", value=self._events.lost
        )
        if self._status is None:
            return
        yield CounterMetricFamily(
            "dra_agent_claim_status_writes", "Claims whose status.devices were written.", value=self._status.written
        )
        yield CounterMetricFamily(
            "dra_agent_claim_status_errors", "Tries to write a claim's status that failed.", value=self._status.failed
        )
        yield GaugeMetricFamily(
            "dra_agent_claim_status_waiting", "Claims whose status is still to be written.", value=self._status.waiting
        )
