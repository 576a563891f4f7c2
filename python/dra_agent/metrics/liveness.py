"""Metric of the liveness: the event loop and worker threads of the agent can hang while /metrics still responds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class LivenessMetrics:
    """Collector for `Metrics.add`."""

    def __init__(self, failures: Callable[[], list[str]]) -> None:
        """`failures` returns what hangs, as /healthz does."""
        self._failures = failures

    def describe(self) -> Iterator[Metric]:
        """Return no metrics: nothing is read before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        from prometheus_client.core import GaugeMetricFamily

        yield GaugeMetricFamily("dra_agent_live", "1 while /healthz succeeds.", value=int(not self._failures()))
