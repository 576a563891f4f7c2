"""The metrics registry.

It owns counters; gauges are read from their owners at each scrape. Labels have few values: never the name or UID of a
claim.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from dra_agent.health.issues import KNOWN_CAUSES
from dra_agent.health.monitor import Summary
from dra_agent.metrics.build import build_info
from dra_agent.metrics.reclaim import families
from dra_agent.metrics.snapshot import CLAIM_STATES, STATES, ClaimGroup, MetricsSnapshot

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX = "dra_agent"
# Most requests take less than 5 ms: a durable prepare takes about 1 ms.
BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
OPERATIONS = ("prepare", "unprepare")
RESULTS = ("ok", "retryable", "permanent", "defect")


class Metrics:
    """The metrics of an agent. Safe for threads."""

    def __init__(self, read: Callable[[], MetricsSnapshot]) -> None:
        """`read` returns the gauges. It is called for each scrape, on a thread of the HTTP server."""
        from prometheus_client import (
            CollectorRegistry,
            Counter,
            Gauge,
            Histogram,
            PlatformCollector,
            ProcessCollector,
            disable_created_metrics,
        )

        disable_created_metrics()  # type: ignore[no-untyped-call]  # twice the series, and the start time is exported anyway

        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._requests = Counter(
            f"{PREFIX}_dra_requests",
            "Requests to prepare or unprepare a claim, by result.",
            ["operation", "result"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            f"{PREFIX}_dra_request_duration_seconds",
            "Duration of requests to prepare or unprepare a claim.",
            ["operation"],
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._inflight = Gauge(f"{PREFIX}_dra_requests_inflight", "Requests in progress.", registry=self._registry)
        self._registrations = Counter(
            f"{PREFIX}_registrations",
            "Result of the kubelet's registration of the driver.",
            ["result"],
            registry=self._registry,
        )
        self._registered = Gauge(
            f"{PREFIX}_registered", "1 while the kubelet knows the driver.", registry=self._registry
        )
        self._phases = Histogram(
            f"{PREFIX}_dra_phase_duration_seconds",
            "Duration of the phases of a request.",
            ["phase"],
            buckets=BUCKETS,
            registry=self._registry,
        )
        # A series that starts at 1 hides its first increase from `rate` and `increase`.
        for operation in OPERATIONS:
            self._seconds.labels(operation)
            for result in RESULTS:
                self._requests.labels(operation, result)
        for result in ("registered", "refused"):
            self._registrations.labels(result)
        self._registry.register(_Gauges(read))

    def inflight(self) -> AbstractContextManager[Any]:
        """Count a request while it runs."""
        return self._inflight.track_inprogress()

    def request(self, operation: str, result: str, seconds: float) -> None:
        """Count a completed request; `result` is ok, retryable, permanent or defect."""
        self._requests.labels(operation, result).inc()
        self._seconds.labels(operation).observe(seconds)

    def registration(self, registered: bool, error: str) -> None:
        """Count a registration of the driver by the kubelet, successful or refused."""
        self._registrations.labels("registered" if registered else "refused").inc()
        self._registered.set(registered)

    def observe_phase(self, phase: str, seconds: float) -> None:
        """Record the duration of a phase of a request."""
        self._phases.labels(phase).observe(seconds)

    def add(self, collector: Any) -> None:
        """Add a collector: an object with a `collect` method that yields metrics."""
        self._registry.register(collector)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the exposition in the format of the Accept header, and its content type."""
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Gauges:
    """Collector that reads the gauges at each scrape."""

    def __init__(self, read: Callable[[], MetricsSnapshot]) -> None:
        self._read = read
        self._build = build_info()

    def describe(self) -> Iterator[Metric]:
        """Return no metrics: nothing is read before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        from prometheus_client.core import GaugeMetricFamily

        snapshot = self._read()
        yield self._build
        yield GaugeMetricFamily(
            f"{PREFIX}_prepared_claims", "Claims that hold devices.", value=snapshot.prepared_claims
        )
        counts: dict[tuple[str, str, str], dict[str, int]] = {}
        info = GaugeMetricFamily(
            f"{PREFIX}_device_info", "Always 1; joins names.", labels=["device", "uuid", "product", "pool"]
        )
        for device in snapshot.devices:
            kind = (device.family, device.pool, device.product)
            counts.setdefault(kind, dict.fromkeys(STATES, 0))[device.state] += 1
            info.add_metric([device.name, device.uuid, device.product, device.pool], 1)
        devices = GaugeMetricFamily(
            f"{PREFIX}_devices", "Devices, each in one state.", labels=["family", "pool", "product", "state"]
        )
        for labels, states in counts.items():
            for state, count in states.items():
                devices.add_metric([*labels, state], count)
        yield devices
        yield info
        yield from _left(snapshot)
        yield from _claims(snapshot)
        taints = GaugeMetricFamily(
            f"{PREFIX}_device_taints", "Always 1; taints of a device.", labels=["device", "cause", "effect"]
        )
        for taint in snapshot.taints:
            taints.add_metric([taint.device, taint.cause, taint.effect], 1)
        yield taints
        yield from _health(snapshot.health)
        yield GaugeMetricFamily(
            f"{PREFIX}_host_problems",
            "Problems of the host, as `dra-agent doctor` reports them.",
            value=snapshot.problems,
        )
        yield GaugeMetricFamily(
            f"{PREFIX}_ledger_writable", "0 while no claim can be recorded.", value=int(snapshot.ledger_writable)
        )
        others = GaugeMetricFamily(
            f"{PREFIX}_second_manager_devices",
            "Devices that a device plugin or another driver also advertises on this node.",
            labels=["manager"],
        )
        for manager, count in snapshot.second_managers.items():
            others.add_metric([manager], count)
        yield others
        excluded = GaugeMetricFamily(
            f"{PREFIX}_excluded_devices", "Devices of this node that are not published.", labels=["code"]
        )
        for code, count in sorted(snapshot.excluded.items()):
            excluded.add_metric([code], count)
        yield excluded
        if snapshot.reclaim is not None:
            yield from families(snapshot.reclaim)
        if snapshot.checkpoint_written is not None:
            yield GaugeMetricFamily(
                f"{PREFIX}_checkpoint_age_seconds",
                "Time since the ledger last wrote.",
                value=max(0.0, time.time() - snapshot.checkpoint_written),  # noqa: TID251 - age of a file: modification times are wall time
            )


def _left(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    allocatable = GaugeMetricFamily(
        f"{PREFIX}_allocatable_devices",
        "The greatest number of devices of this kind alone that can still be claimed at the same time.",
        labels=["family", "pool", "product", "partition"],
    )
    for kind, count in snapshot.allocatable.items():
        allocatable.add_metric([kind.family, _pool(snapshot, kind.family), kind.product, kind.partition], count)
    yield allocatable
    labels = ["family", "pool", "product"]
    free = GaugeMetricFamily(f"{PREFIX}_free_memory_bytes", "Device memory that no claim holds.", labels=labels)
    fitting = GaugeMetricFamily(
        f"{PREFIX}_fitting_memory_bytes",
        "Memory of the largest device that still fits on each GPU, summed up; less than free: fragmentation.",
        labels=labels,
    )
    largest = GaugeMetricFamily(
        f"{PREFIX}_largest_free_device_memory_bytes",
        "Memory of the largest device that can still be claimed.",
        labels=labels,
    )
    for (family, product), memory in snapshot.memory.items():
        values = [family, _pool(snapshot, family), product]
        free.add_metric(values, memory.total)
        fitting.add_metric(values, memory.fitting)
        largest.add_metric(values, memory.largest)
    yield from (free, fitting, largest)


def _pool(snapshot: MetricsSnapshot, family: str) -> str:
    return f"{snapshot.node}/{family}"


def _claims(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    claims = GaugeMetricFamily(f"{PREFIX}_claims", "Claims in the ledger, by state.", labels=["state"])
    oldest = GaugeMetricFamily(
        f"{PREFIX}_oldest_claim_age_seconds",
        "Time since the oldest claim in this state was recorded; 0 without claims.",
        labels=["state"],
    )
    for state, group in {**dict.fromkeys(CLAIM_STATES.values(), ClaimGroup()), **snapshot.claims}.items():
        claims.add_metric([state], group.count)
        oldest.add_metric([state], group.oldest_s)
    yield from (claims, oldest)


def _health(summary: Summary) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    causes = GaugeMetricFamily(
        f"{PREFIX}_device_causes", "Always 1; health issues of a device.", labels=["device", "cause"]
    )
    for device, cause in summary.causes:
        causes.add_metric([device, cause], 1)
    yield causes
    happened = CounterMetricFamily(
        f"{PREFIX}_device_cause_begun", "Number of health issues and events.", labels=["cause"]
    )
    for cause, count in {**dict.fromkeys(KNOWN_CAUSES, 0), **summary.happened}.items():
        happened.add_metric([cause], count)
    yield happened
    yield CounterMetricFamily(
        f"{PREFIX}_device_flaps_suppressed",
        "Number of recurrences of a cause while it was active.",
        value=summary.suppressed,
    )
