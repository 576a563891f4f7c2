"""Metrics of the agent's process: failures of its loops, and lines that its log lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class ProcessMetrics:
    """Collector for `Metrics.add`."""

    def __init__(self, failures: Mapping[str, int], dropped_lines: Callable[[], int]) -> None:
        """`failures` counts those of each loop by its name, `dropped_lines` those of the log; both at each scrape."""
        self._failures = failures
        self._dropped_lines = dropped_lines

    def describe(self) -> Iterator[Metric]:
        """Return no metrics: nothing is read before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        from prometheus_client.core import CounterMetricFamily

        failures = CounterMetricFamily(
            "dra_agent_loop_failures",
            "Failures of a loop of the agent, after each of which it was started again.",
            labels=["loop"],
        )
        for loop, count in sorted(dict(self._failures).items()):
            failures.add_metric([loop], count)
        yield failures
        yield CounterMetricFamily(
            "dra_agent_log_lines_dropped",
            "Lines of the log that were dropped, because nothing read standard error.",
            value=self._dropped_lines(),
        )
