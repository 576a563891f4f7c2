"""What Prometheus is told. Counters are kept here; gauges are read from their owners when somebody asks.

Labels have few values: never a claim's name or uid.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import msgspec

from dra_agent import __version__
from dra_agent.health import Summary
from dra_agent.health.issues import KNOWN_CAUSES
from dra_agent.metrics.reclaim import ReclaimSnapshot, families

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX = "dra_agent"
# Below 5 ms because most requests are: a durable prepare takes about a millisecond.
BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


STATES = ("free", "blocked", "prepared", "tainted", "unhealthy")
"""blocked: it shares counters with a prepared device, and what is left of them is not enough for it."""
OPERATIONS = ("prepare", "unprepare")
RESULTS = ("ok", "retryable", "permanent", "defect")


class DeviceInfo(msgspec.Struct, frozen=True):
    """A device as the metrics show it."""

    name: str
    pool: str
    state: str
    """One of STATES; of several that are true the last."""
    uuid: str = ""
    product: str = ""
    family: str = ""


class MetricsSnapshot(msgspec.Struct, frozen=True):
    """The gauges of one moment."""

    devices: tuple[DeviceInfo, ...] = ()
    prepared_claims: int = 0
    ledger_writable: bool = True
    checkpoint_written: float | None = None
    """Unix time of the newest record in the ledger."""
    problems: int = 0
    second_managers: dict[str, int] = {}
    """Who else gives out devices of this node → how many of them."""
    health: Summary = Summary()
    reclaim: ReclaimSnapshot | None = None


class Metrics:
    """One registry; safe to use from several threads."""

    def __init__(self, read: Callable[[], MetricsSnapshot]) -> None:
        """`read` is called for each scrape, on the thread of the server."""
        from prometheus_client import (
            CollectorRegistry,
            Counter,
            Gauge,
            Histogram,
            PlatformCollector,
            ProcessCollector,
            disable_created_metrics,
        )

        disable_created_metrics()  # type: ignore[no-untyped-call]  # twice the series for what start_time says

        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._requests = Counter(
            f"{PREFIX}_dra_requests",
            "Requests to prepare or unprepare a claim, by how they ended.",
            ["operation", "result"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            f"{PREFIX}_dra_request_duration_seconds",
            "How long requests to prepare or unprepare a claim took.",
            ["operation"],
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._inflight = Gauge(
            f"{PREFIX}_dra_requests_inflight", "Requests that are being worked on.", registry=self._registry
        )
        self._registrations = Counter(
            f"{PREFIX}_registrations",
            "What the kubelet said when it looked at the driver.",
            ["result"],
            registry=self._registry,
        )
        self._registered = Gauge(
            f"{PREFIX}_registered", "1 while the kubelet knows the driver.", registry=self._registry
        )
        self._phases = Histogram(
            f"{PREFIX}_dra_phase_duration_seconds",
            "How long parts of a request took.",
            ["phase"],
            buckets=BUCKETS,
            registry=self._registry,
        )
        # A series that begins at 1 hides its first increase from `rate` and `increase`.
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
        """Note a request that has ended: ok, retryable, permanent or defect."""
        self._requests.labels(operation, result).inc()
        self._seconds.labels(operation).observe(seconds)

    def registration(self, registered: bool, error: str) -> None:
        """Note what the kubelet made of the driver."""
        self._registrations.labels("registered" if registered else "refused").inc()
        self._registered.set(registered)

    def observe_phase(self, phase: str, seconds: float) -> None:
        """Note how long a part of a request took."""
        self._phases.labels(phase).observe(seconds)

    def add(self, collector: Any) -> None:
        """Ask this collector too: an object whose `collect` gives metrics."""
        self._registry.register(collector)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Give everything in the form that the Accept header asks for, and its content type."""
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Gauges:
    """A collector that reads when it is read."""

    def __init__(self, read: Callable[[], MetricsSnapshot]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Nothing is read before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Read the gauges."""
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        reading = self._read()
        yield InfoMetricFamily(f"{PREFIX}_build", "The agent's version.", {"version": __version__})
        yield GaugeMetricFamily(f"{PREFIX}_prepared_claims", "Claims that hold devices.", value=reading.prepared_claims)
        counts: dict[tuple[str, str, str], dict[str, int]] = {}
        info = GaugeMetricFamily(
            f"{PREFIX}_device_info", "Always 1; joins names.", labels=["device", "uuid", "product", "pool"]
        )
        for device in reading.devices:
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
        yield from _health(reading.health)
        yield GaugeMetricFamily(
            f"{PREFIX}_host_problems", "What is wrong on the host, as `dra-agent doctor` tells.", value=reading.problems
        )
        yield GaugeMetricFamily(
            f"{PREFIX}_ledger_writable", "0 while no claim can be recorded.", value=int(reading.ledger_writable)
        )
        others = GaugeMetricFamily(
            f"{PREFIX}_second_manager_devices",
            "Devices that a device plugin or another driver gives out on this node too.",
            labels=["manager"],
        )
        for manager, count in reading.second_managers.items():
            others.add_metric([manager], count)
        yield others
        if reading.reclaim is not None:
            yield from families(reading.reclaim)
        if reading.checkpoint_written is not None:
            yield GaugeMetricFamily(
                f"{PREFIX}_checkpoint_age_seconds",
                "Time since the ledger last wrote.",
                value=max(0.0, time.time() - reading.checkpoint_written),
            )


def _health(summary: Summary) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    causes = GaugeMetricFamily(
        f"{PREFIX}_device_causes", "Always 1; what is wrong with a device.", labels=["device", "cause"]
    )
    for device, cause in summary.causes:
        causes.add_metric([device, cause], 1)
    yield causes
    happened = CounterMetricFamily(
        f"{PREFIX}_device_cause_begun", "How often something began to be wrong, or happened.", labels=["cause"]
    )
    for cause, count in {**dict.fromkeys(KNOWN_CAUSES, 0), **summary.happened}.items():
        happened.add_metric([cause], count)
    yield happened
    yield CounterMetricFamily(
        f"{PREFIX}_device_flaps_suppressed",
        "How often a cause came back while it still counted.",
        value=summary.suppressed,
    )
