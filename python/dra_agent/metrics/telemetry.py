"""Metrics of telemetry: values by device, and by claim where the endpoint may show names of claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dra_agent.claim import ClaimRef
from dra_agent.inventory.model import Device, Inventory
from dra_agent.telemetry.accounting import ClaimUsage
from dra_agent.telemetry.claim_pods import ClaimPods
from dra_agent.telemetry.model import COUNTERS, GAUGES, THROTTLE_REASONS, DeviceSample
from dra_agent.telemetry.sampler import TelemetrySnapshot

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily, Metric

_DEVICE, _CLAIM = "dra_agent_device", "dra_agent_claim"
_DEVICE_LABELS = ["device", "family", "product", "pool"]
_CLAIM_LABELS = ["namespace", "claim", "device"]
MAX_CLAIMED_DEVICES = 1024
"""Claims on devices that have series. Claims of whole devices are fewer, but nothing else limits how many share one."""


class TelemetryMetrics:
    """Collector for `Metrics.add`."""

    def __init__(
        self,
        read: Callable[[], TelemetrySnapshot],
        inventory: Callable[[], Inventory],
        node: str,
        held: Callable[[], set[str]],
        *,
        claim_labels: bool,
        pods: ClaimPods | None = None,
        containers: Callable[[], Iterable[Sequence[str]]] | None = None,
    ) -> None:
        """`held` returns the uids of prepared claims: one that was released since the last sample has no series.

        `pods`: the pods of claims, where they are wanted too. `containers` returns namespace, claim, pod and name of
        each container of a prepared claim.
        """
        self._read = read
        self._inventory = inventory
        self._node = node
        self._held = held
        self._claim_labels = claim_labels
        self._pods = pods
        self._containers = containers
        self._rows = _Rows()

    def describe(self) -> Iterator[Metric]:
        """Return no metrics: nothing is read before the first scrape."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        snapshot = self._read()
        yield from self._devices(snapshot)
        yield _failures(snapshot)
        if self._claim_labels:
            held = self._held()
            yield from _claims(snapshot, held, self._rows)
            if self._pods is not None:
                yield _pods(self._pods, held)
            if self._containers is not None:
                yield _containers(self._containers())

    def _devices(self, snapshot: TelemetrySnapshot) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = {
            device.name: [device.name, device.family, _product(device), device.pool(self._node)]
            for device in self._inventory().devices
            if device.name in snapshot.samples
        }
        for name in (*GAUGES, *COUNTERS):
            kind = CounterMetricFamily if name in COUNTERS else GaugeMetricFamily
            family = kind(f"{_DEVICE}_{name}", f"{_help(name)}, of a device.", labels=_DEVICE_LABELS)
            for device, values in labels.items():
                if (value := getattr(snapshot.samples[device], name)) is not None:
                    family.add_metric(values, value)
            yield family
        throttled = GaugeMetricFamily(
            f"{_DEVICE}_throttled", "1 while the reason lowers the clocks.", labels=[*_DEVICE_LABELS, "reason"]
        )
        for device, values in labels.items():
            _add_reasons(throttled, values, snapshot.samples[device])
        yield throttled


def _add_reasons(throttled: GaugeMetricFamily, labels: Sequence[str], sample: DeviceSample | None) -> None:
    """Add a series for each reason; none if they are not known."""
    reasons = None if sample is None else sample.throttle_reasons
    if reasons is not None:
        for reason in THROTTLE_REASONS:
            throttled.add_metric([*labels, reason], int(reason in reasons))


def _failures(snapshot: TelemetrySnapshot) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    # A series that starts at 1 hides its first increase, and an alert on a missing series cannot be resolved.
    failing: dict[str, set[str]] = {source: set() for source in snapshot.sources}
    for failure in snapshot.failures:
        failing.setdefault(failure.source, set()).add(failure.device)
    family = GaugeMetricFamily(
        "dra_agent_telemetry_failing_devices", "Devices whose values are missing or wrong.", labels=["source"]
    )
    for source, devices in failing.items():
        family.add_metric([source], len(devices))
    return family


class _Rows:
    """The claims on devices that have series, by their labels."""

    def __init__(self) -> None:
        self._shown: frozenset[tuple[str, ...]] = frozenset()

    def omit(self, rows: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
        """Return those beyond the limit. A new claim does not end the series of another one."""
        found = dict.fromkeys(rows)
        ordered = sorted(found, key=lambda row: row not in self._shown)
        self._shown = frozenset(ordered[:MAX_CLAIMED_DEVICES])
        return ordered[MAX_CLAIMED_DEVICES:]


def _claims(snapshot: TelemetrySnapshot, held: set[str], rows: _Rows) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    # A device has one holder, so that no series occurs twice: not even for two claims of one name.
    holders: dict[tuple[str, str, str], tuple[ClaimRef, str]] = {
        (claim.namespace, claim.name, device): (claim, device)
        for device, claim in snapshot.holders.items()
        if claim.uid in held
    }
    usage: dict[tuple[str, str], ClaimUsage] = {(one.claim.uid, one.device): one for one in snapshot.usage}
    shares = _shares(snapshot, held)
    omitted = rows.omit((*holders, *shares))
    for row in omitted:
        holders.pop(row, None)
        shares.pop(row, None)
    yield GaugeMetricFamily(
        "dra_agent_telemetry_omitted_claims",
        "Claims on devices that have no series, because there are too many.",
        value=len(omitted),
    )
    for name in GAUGES:
        gauge = GaugeMetricFamily(f"{_CLAIM}_{name}", f"{_help(name)}, of a claim.", labels=_CLAIM_LABELS)
        for labels, (_, device) in holders.items():
            sample = snapshot.samples.get(device)
            if labels not in shares and sample is not None and (value := getattr(sample, name)) is not None:
                gauge.add_metric(list(labels), value)
        for labels, sample in shares.items():
            if sample is not None and (value := getattr(sample, name)) is not None:
                gauge.add_metric(list(labels), value)
        yield gauge
    throttled = GaugeMetricFamily(
        f"{_CLAIM}_throttled", "1 while the reason lowers the clocks of the claim.", labels=[*_CLAIM_LABELS, "reason"]
    )
    for labels, (_, device) in holders.items():
        _add_reasons(throttled, labels, shares[labels] if labels in shares else snapshot.samples.get(device))
    yield throttled
    for name in COUNTERS:
        counter = CounterMetricFamily(
            f"{_CLAIM}_{name}", f"{_help(name)}, since the first sample of the claim.", labels=_CLAIM_LABELS
        )
        for labels, (claim, device) in holders.items():
            counts = usage.get((claim.uid, device))
            if counts is not None and name in counts.totals:
                counter.add_metric(list(labels), counts.totals[name])
        yield counter
    idle = CounterMetricFamily(
        f"{_CLAIM}_idle_seconds", "Time in which the claim's GPU did not compute.", labels=_CLAIM_LABELS
    )
    for labels, (claim, device) in holders.items():
        counts = usage.get((claim.uid, device))
        if counts is not None and counts.idle_seconds is not None:
            idle.add_metric(list(labels), counts.idle_seconds)
    yield idle


def _shares(snapshot: TelemetrySnapshot, held: set[str]) -> dict[tuple[str, str, str], DeviceSample | None]:
    """Return the values of claims that are not those of their device; None for two claims of one name: one ends."""
    found: dict[tuple[str, str, str], DeviceSample | None] = {}
    for (claim, device), sample in snapshot.shares.items():
        labels = (claim.namespace, claim.name, device)
        if claim.uid in held:
            found[labels] = None if labels in found else sample
    return found


def _pods(pods: ClaimPods, held: set[str]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(
        f"{_CLAIM}_pod_info", "Always 1; pods that use a claim.", labels=["namespace", "claim", "pod"]
    )
    # Two claims of one name: the older one is being released.
    for labels in sorted({(claim.namespace, claim.name, pod) for claim, pod in pods.of(held)}):
        family.add_metric(list(labels), 1)
    return family


def _containers(containers: Iterable[Sequence[str]]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(
        f"{_CLAIM}_container_info",
        "Always 1; containers that use a claim.",
        labels=["namespace", "claim", "pod", "container"],
    )
    for labels in containers:
        family.add_metric(labels, 1)
    return family


def _product(device: Device) -> str:
    attribute = device.attributes.get("productName")
    return (attribute.string if attribute is not None else None) or ""


def _help(name: str) -> str:
    return name.replace("_", " ").capitalize()
