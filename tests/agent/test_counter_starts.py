"""The start times of exported counters: a cumulative sum of OTLP falls only if it has a new start."""

from __future__ import annotations

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.core import CounterMetricFamily

from dra_agent.agent.counter_starts import UNKNOWN, CounterStarts
from dra_agent.metrics.telemetry import CLAIM_COUNTERS, DEVICE_COUNTERS, XID_COUNTER
from dra_agent.otlp.encoding import encode_metrics, resource
from dra_agent.prepare.ledger import HeldDevice, LedgerEntry

BOOT_S, PROCESS_S = 1_000, 2_000
GPU = {"device": "gpu-0", "family": "gpu", "product": "P", "pool": "n/gpu"}
ENERGY = "dra_agent_device_energy_joules_total"


def entry(device: HeldDevice, started_at: float) -> LedgerEntry:
    return LedgerEntry("u", "team-a", "train", devices=(device,), state="completed", started_at=started_at)


class Exports:
    """The exports of one agent, a minute after another."""

    def __init__(self, *entries: LedgerEntry) -> None:
        self.entries = list(entries)
        self._starts = CounterStarts(lambda: self.entries, process_ns=PROCESS_S * 10**9, boot_ns=BOOT_S * 10**9)
        self.time_s = PROCESS_S

    def start_s(self, name: str, value: float, **labels: str) -> float:
        """Export one series, and return the start that the collector receives."""
        self.time_s += 60
        labels = labels or GPU
        family = CounterMetricFamily(name, "N.", labels=list(labels))
        family.add_metric(list(labels.values()), value)
        now_ns = self.time_s * 10**9
        body, _ = encode_metrics([family], resource({}), self._starts.read(), now_ns, names_claims=True)
        request = ExportMetricsServiceRequest.FromString(body)
        (metric,) = request.resource_metrics[0].scope_metrics[0].metrics
        (point,) = metric.sum.data_points
        assert metric.sum.is_monotonic and point.time_unix_nano == now_ns >= point.start_time_unix_nano
        return point.start_time_unix_nano / 1e9


@pytest.mark.parametrize("name", sorted(DEVICE_COUNTERS - {XID_COUNTER}))
def test_a_counter_of_the_hardware_that_falls_has_a_new_start(name: str) -> None:
    exports = Exports()
    assert [exports.start_s(name, value) for value in (500, 500, 900)] == [BOOT_S] * 3
    before = exports.time_s
    assert [exports.start_s(name, value) for value in (3, 3, 800)] == [before] * 3, "the time of the point before"
    before = exports.time_s
    assert exports.start_s(name, 0) == before
    assert exports.start_s(name, 7, **GPU | {"device": "gpu-1"}) == BOOT_S, "the series of another device"


def test_a_counter_that_falls_starts_before_its_point_after_the_clock_was_set_back() -> None:
    exports = Exports()
    exports.start_s(ENERGY, 500)
    exports.time_s -= 600
    assert exports.start_s(ENERGY, 3) == exports.time_s


def test_xids_start_with_the_agent() -> None:
    gpu = HeldDevice("n/gpu", "gpu-0", "r")
    for entries in (
        (),
        (entry(gpu, PROCESS_S + 1),),
        (entry(HeldDevice("n/gpu", "gpu-1", "r"), PROCESS_S - 1),),
        (entry(HeldDevice("n/gpu", "gpu-0", "r", admin_access=True), PROCESS_S - 1),),
        (entry(HeldDevice("n/gpu", "gpu-0", "", share_id="s"), PROCESS_S - 1),),
    ):
        exports = Exports(*entries)
        assert [exports.start_s(XID_COUNTER, value) for value in (0, 2)] == [PROCESS_S] * 2


def test_the_start_of_xids_that_a_claim_has_from_an_earlier_agent_is_not_known() -> None:
    exports = Exports(entry(HeldDevice("n/gpu", "gpu-0", "r"), PROCESS_S - 1))
    assert exports.start_s(XID_COUNTER, 4) == UNKNOWN
    exports.entries = []
    assert exports.start_s(XID_COUNTER, 4) == UNKNOWN, "the count continues after the end of the claim"


def test_other_counters_start_with_the_agent_and_those_of_claims_with_the_claim() -> None:
    exports = Exports(entry(HeldDevice("n/gpu", "gpu-0", "r"), 1_500))
    assert exports.start_s("dra_agent_publish_writes_total", 3, operation="create") == PROCESS_S
    for name in CLAIM_COUNTERS:
        assert exports.start_s(name, 3, namespace="team-a", claim="train", device="gpu-0") == 1_500
        assert exports.start_s(name, 3, namespace="team-b", claim="train", device="gpu-0") == UNKNOWN
