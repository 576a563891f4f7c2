"""Metrics of the configuration: the success of the last reload, and the loaded configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_PREFIX = "dra_agent_config"


class ConfigMetrics:
    """Collector for `Metrics.add`."""

    def __init__(self, read: Callable[[], tuple[bool, float, int]]) -> None:
        """`read` returns the success of the last reload, the time of the last successful one, and its checksum."""
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Return no metrics: nothing is read before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        from prometheus_client.core import GaugeMetricFamily

        successful, loaded_at, checksum = self._read()
        yield GaugeMetricFamily(
            f"{_PREFIX}_last_reload_successful",
            "0 while an invalid configuration is not applied.",
            value=int(successful),
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}_last_reload_success_timestamp_seconds",
            "When the last valid configuration was loaded.",
            value=loaded_at,
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}_hash", "CRC-32 of the last valid configuration; it differs if a value does.", value=checksum
        )
