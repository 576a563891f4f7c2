"""Metrics of the OpenTelemetry export itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from dra_agent.otlp.exporter import ExportStats

_PREFIX = "dra_agent_otlp"


class OtlpMetrics:
    """Collector for `Metrics.add`."""

    def __init__(self, read: Callable[[], ExportStats]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Return no metrics: nothing is read before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        stats = self._read()
        exports = CounterMetricFamily(
            f"{_PREFIX}_exports", "Requests to the collector, by result.", labels=["signal", "result"]
        )
        for labels, count in stats.exports.items():
            exports.add_metric(list(labels), count)
        yield exports
        yield CounterMetricFamily(
            f"{_PREFIX}_dropped_spans", "Spans that were not exported.", value=stats.dropped_spans
        )
        yield GaugeMetricFamily(f"{_PREFIX}_queued_spans", "Spans to be exported.", value=stats.queued_spans)
