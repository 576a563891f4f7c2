"""Metrics of the admission webhook."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dra_agent.metrics.build import build_info
from dra_agent.server_certificate import ReloadingCertificate
from dra_agent.webhook.server import ReviewObserver, Webhook

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX = "dra_agent_webhook"
RESULTS = ("allowed", "refused", "unreadable", "too_large", "defect", "unauthenticated")
BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class WebhookMetrics(ReviewObserver):
    """The metrics of the webhook. It counts on the event loop, and is read on threads of the HTTP server."""

    def __init__(self, certificate: ReloadingCertificate) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics

        disable_created_metrics()  # type: ignore[no-untyped-call]  # twice the series, and the start time is exported anyway
        self._certificate = certificate
        self._build = build_info()
        self._webhook: Webhook | None = None
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._reviews = Counter(f"{PREFIX}_reviews", "Reviews by result.", ["result"], registry=self._registry)
        self._seconds = Histogram(
            f"{PREFIX}_review_duration_seconds",
            "Duration of a review.",
            buckets=BUCKETS,
            registry=self._registry,
        )
        for result in RESULTS:
            self._reviews.labels(result)
        self._registry.register(self)

    def of(self, webhook: Webhook) -> None:
        """Set the webhook whose connections are counted."""
        self._webhook = webhook

    def review(self, result: str, seconds: float) -> None:
        """Count a review."""
        self._reviews.labels(result).inc()
        self._seconds.observe(seconds)

    def unauthenticated_client(self) -> None:
        """Count a client without a valid certificate."""
        self._reviews.labels("unauthenticated").inc()

    def describe(self) -> Iterator[Metric]:
        """Return no metrics: nothing is read before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield self._build
        yield GaugeMetricFamily(
            f"{PREFIX}_certificate_unusable",
            "1 while the files hold a newer certificate that cannot be used.",
            value=int(self._certificate.unusable),
        )
        if self._webhook is not None:
            yield GaugeMetricFamily(f"{PREFIX}_connections", "Open connections.", value=self._webhook.connections)
            yield CounterMetricFamily(
                f"{PREFIX}_connections_closed",
                "Connections closed because there were too many.",
                value=self._webhook.closed,
            )

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the exposition in the format of the Accept header, and its content type."""
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        exposition: tuple[Any, str] = (encode(self._registry), content_type)
        return exposition
