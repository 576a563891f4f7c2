"""The number of series: what the page states for a full node, and limits that no number of claims exceeds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dra_simulate
from deadlines import a_minute
from deploy.rendering import ROOT
from dra_agent.claim import ClaimDevice, ClaimRef
from dra_agent.device_setup.mig import MigConfig, MigSetup
from dra_agent.health.monitor import Summary
from dra_agent.host import Host
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.kubelet_plugin.pod_resources import MAX_CONTAINERS
from dra_agent.metrics.allocatable import AllocatableTracker
from dra_agent.metrics.registry import Metrics
from dra_agent.metrics.snapshot import MetricsSnapshot, collect
from dra_agent.metrics.telemetry import MAX_CLAIMED_DEVICES, TelemetryMetrics
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.prepare.record import ClaimRecord, SetupRecord
from dra_agent.prepare.setup import SetupDevice
from dra_agent.telemetry.accounting import ClaimUsage
from dra_agent.telemetry.claim_pods import MAX_CLAIMS, MAX_PODS, ClaimPods
from dra_agent.telemetry.exposition import parse
from dra_agent.telemetry.model import COUNTERS, GAUGES, THROTTLE_REASONS, DeviceSample
from dra_agent.telemetry.sampler import TelemetrySnapshot
from eventually import DEADLINE_S, eventually
from telemetry.rig import Rig, claim, held

PROFILE = "dgx-h100"
SLICES, CLAIMS = 56, 64
PAGE, TELEMETRY_PAGE = ROOT / "docs/reference/metrics.md", ROOT / "docs/how-to/operate/telemetry.md"
MIG_RULE = PartitionRule(when='device.attributes["dra-agent.internal"].type == "gpu"', mode="mig")
GROUPS = {
    "dra_agent_device_info": r"dra_agent_device_info",
    "dra_agent_device_throttled": r"dra_agent_device_throttled",
    "dra_agent_device_NAME": rf"dra_agent_device_({'|'.join(GAUGES)}|({'|'.join(COUNTERS)})_total)",
    "dra_agent_claim_throttled": r"dra_agent_claim_throttled",
    "dra_agent_claim_NAME": rf"dra_agent_claim_({'|'.join(GAUGES)}|({'|'.join((*COUNTERS, 'idle_seconds'))})_total)",
}
"""Metrics whose series are as many as devices, or as claims on devices, by their names on the page."""


def series_by_metric(exposition: str) -> Counter[str]:
    lines = [line for line in exposition.splitlines() if line and not line.startswith("#")]
    names = [line.rpartition(" ")[0] for line in lines]
    assert len(set(names)) == len(names), "no series occurs twice"
    return Counter(name.partition("{")[0] for name in names)


def by_group(counts: Counter[str]) -> dict[str, int]:
    return {
        group: sum(count for name, count in counts.items() if re.fullmatch(pattern, name))
        for group, pattern in GROUPS.items()
    }


def stated() -> dict[str, int]:
    """Return the numbers of the page by metric."""
    section = PAGE.read_text().partition("### Number of series\n")[2].partition("\n## ")[0]
    return {name: int(number) for name, number in re.findall(r"^\| `(\w+)`[^|]* \| ([0-9]+) \|", section, re.MULTILINE)}


class FullNode:
    """A DGX H100 in partitions, with a ledger and all that an agent shows of its devices and claims."""

    def __init__(self, root: Path) -> None:
        built = dra_simulate.build(PROFILE, root / "host")
        self._state = root / "state"
        self._state.mkdir()
        host = Host(built.sysfs, built.dev, built.proc, built.nvml_library, state=self._state)
        self.rig = Rig(host, self._state, InventorySettings(partition=(MIG_RULE,)))
        # The agent's monitor of health counts them from its start for each GPU.
        self.rig.xids = dict.fromkeys(self.devices(r"gpu-[0-9a-f-]+"), 0)
        self.ledger = JournalLedger(self._state, "boot-1")
        self._setup = MigSetup(host, DEADLINE_S)
        self._tracker = AllocatableTracker()

    def devices(self, pattern: str) -> list[str]:
        return [device.name for device in self.rig.inventory.devices if re.fullmatch(pattern, device.name)]

    def prepare(self, device: str, *, admin: bool = False) -> None:
        """Record a prepared claim on a NIC, on a MIG device that is created for it, or one that monitors a device."""
        family = device.partition("-")[0]
        requested, name = ClaimDevice(f"node-1/{family}", device, ("r",), None, admin), f"c{len(self.rig.entries)}"
        holds, steps = [held(device, admin=admin)], tuple[SetupRecord, ...]()
        if "-mig-" in device and not admin:
            found = self.rig.inventory.device(device)
            assert found is not None
            outcome = self._setup.set_up(f"uid-{name}", [SetupDevice(requested, found)], MigConfig(), None, a_minute())
            steps = (SetupRecord(*self._setup.kind, (device,), done=True, record=outcome.record),)
            holds.append(
                msgspec.structs.replace(held(device.partition("-mig-")[0], share=device, shared=True), request="")
            )
        entry = claim(name, *holds, state="started")
        self.ledger.start(entry, durable=False)
        self.ledger.complete(entry.uid, msgspec.to_builtins(ClaimRecord((requested,), steps)))
        self.rig.entries = self.ledger.entries()

    def series(self) -> Counter[str]:
        """Count the series of /metrics."""
        metrics = Metrics(self._snapshot)
        metrics.add(
            TelemetryMetrics(
                self.rig.sampler.snapshot,
                lambda: self.rig.inventory,
                "node-1",
                lambda: {entry.uid for entry in self.rig.entries},
                claim_labels=True,
            )
        )
        return series_by_metric(metrics.render()[0].decode())

    def sampled_until(self, condition: Callable[[Counter[str]], bool]) -> Counter[str]:
        """Sample until the series are as expected; return them.

        A sample has no averages of a GPU within the 100 ms in which the driver refreshes its counters once.
        """
        found: Counter[str] = Counter()

        def sampled() -> bool:
            nonlocal found
            self.rig.sample()
            found = self.series()
            return condition(found)

        eventually(sampled, lambda: by_group(found))
        return found

    def _snapshot(self) -> MetricsSnapshot:
        return collect(
            self._state,
            "node-1",
            inventory=self.rig.inventory,
            health=Summary(),
            ledger=self.ledger,
            reclaim=None,
            tracker=self._tracker,
            driver="dra-agent.internal",
        )

    def close(self) -> None:
        self.rig.close()
        self.ledger.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FullNode]:
    made = FullNode(tmp_path)
    yield made
    made.close()


def test_a_full_node_has_the_series_that_the_page_states(node: FullNode) -> None:
    slices, nics = node.devices(r"gpu-.*-mig-1g-10gb-[0-6]"), node.devices(r"nic-.*")
    assert len(slices) == SLICES
    without_claims = node.series()
    for device in (*slices, *nics[: CLAIMS - SLICES]):
        node.prepare(device)
    assert len(node.rig.entries) == CLAIMS
    for _ in range(2):  # averages need a sample before, and energy of the claims another one
        node.rig.sample()
    full = node.sampled_until(lambda found: by_group(found) == stated())
    assert node.rig.sampler.snapshot().failures == ()
    # The numbers of other series depend on neither.
    others = {name for name, count in full.items() if without_claims[name] != count}
    assert {name for name in others if not any(re.fullmatch(one, name) for one in GROUPS.values())} <= {
        "dra_agent_telemetry_failing_devices"
    }
    # Claims that monitor devices of others have no series, however many they are.
    for device in slices:
        node.prepare(device, admin=True)
    node.sampled_until(lambda found: found == full)


class ManyClaims:
    """The metrics of a node with made-up values: every value that exists, of every device and claim."""

    def __init__(self, devices: Collection[str]) -> None:
        self.pods = ClaimPods()
        self.devices = devices
        self.holders: dict[str, ClaimRef] = {}
        self.shares: list[ClaimRef] = []
        """Claims that share the first device."""
        self._metrics = Metrics(MetricsSnapshot)
        inventory = Inventory(tuple(Device(name, "gpu", "nvidia", "0000:01:00.0", {}) for name in devices))
        self._metrics.add(
            TelemetryMetrics(
                self._snapshot, lambda: inventory, "n", self._held, claim_labels=True, pods=self.pods, containers=list
            )
        )

    def exposition(self) -> str:
        return self._metrics.render()[0].decode()

    def _held(self) -> set[str]:
        return {claim.uid for claim in (*self.shares, *self.holders.values())}

    def _snapshot(self) -> TelemetrySnapshot:
        every: dict[str, Any] = dict.fromkeys((*GAUGES, *COUNTERS), 1)
        sample = DeviceSample(**every, throttle_reasons=THROTTLE_REASONS)
        totals = dict.fromkeys(COUNTERS, 1.0)
        return TelemetrySnapshot(
            samples=dict.fromkeys(self.devices, sample),
            holders=self.holders,
            shares={(claim, next(iter(self.devices))): sample for claim in self.shares},
            usage=tuple(
                ClaimUsage(claim, device, totals=totals, idle_seconds=1.0) for device, claim in self.holders.items()
            ),
        )


def claims(first_letter: str, count: int) -> list[ClaimRef]:
    return [ClaimRef(f"uid-{first_letter}{number}", "team-a", f"{first_letter}{number}") for number in range(count)]


def test_each_device_and_each_claim_has_the_series_that_the_page_states_at_most() -> None:
    names = [f"gpu-{number}" for number in range(3)]
    node = ManyClaims(names)
    node.holders = dict(zip(names[:2], claims("c", 2), strict=True))
    text = TELEMETRY_PAGE.read_text()
    (stated,) = re.findall(r"(\d+) series and (\d+)\s+throttle reasons for each device,", text)
    (stated_of_claims,) = re.findall(r"(\d+) series and (\d+)\s+throttle reasons for each device of a claim", text)
    (values, reasons), (claim_values, claim_reasons) = map(int, stated), map(int, stated_of_claims)
    assert by_group(series_by_metric(node.exposition())) == {
        "dra_agent_device_info": 0,
        "dra_agent_device_NAME": 3 * values,
        "dra_agent_device_throttled": 3 * reasons,
        "dra_agent_claim_NAME": 2 * claim_values,
        "dra_agent_claim_throttled": 2 * claim_reasons,
    }


def test_no_number_of_claims_exceeds_the_limit() -> None:
    node = ManyClaims(["gpu-0"])
    node.shares = claims("s", 5 * MAX_CLAIMED_DEVICES)
    text = node.exposition()
    counts = series_by_metric(text)
    assert counts["dra_agent_claim_power_watts"] == MAX_CLAIMED_DEVICES
    assert max(by_group(counts).values()) <= MAX_CLAIMED_DEVICES * (len(GAUGES) + len(COUNTERS) + 1)
    assert f"dra_agent_telemetry_omitted_claims {4.0 * MAX_CLAIMED_DEVICES}" in text.splitlines()
    values = parse(text)
    assert len(values.claims) == MAX_CLAIMED_DEVICES, "`dra-agent top` reads it"
    assert values.problems == ("4,096 claims on devices have no values: there are too many",)
    assert f"{MAX_CLAIMED_DEVICES:,} claims on devices" in PAGE.read_text()


def test_new_claims_end_no_series_of_others() -> None:
    node = ManyClaims(["gpu-0", "gpu-1"])
    node.holders = {"gpu-1": claims("x", 1)[0]}
    early = node.shares = claims("z", 2)
    node.exposition()
    for first_letter in "ab":
        node.shares = [*claims(first_letter, 2 * MAX_CLAIMED_DEVICES), *early]
        shown = {one.name for one in parse(node.exposition()).claims}
        assert {"x0", "z0", "z1"} <= shown and len(shown) == MAX_CLAIMED_DEVICES
    node.shares = early
    text = node.exposition()
    assert {one.name for one in parse(text).claims} == {"x0", "z0", "z1"} and parse(text).problems == ()
    assert "dra_agent_telemetry_omitted_claims 0.0" in text.splitlines()


def test_pods_of_claims_are_bounded() -> None:
    node = ManyClaims(["gpu-0"])
    node.shares = claims("s", MAX_CLAIMS + 10)
    users = [{"resource": "pods", "name": f"pod-{number}", "uid": str(number)} for number in range(2 * MAX_PODS)]
    for one in node.shares:
        metadata = {"uid": one.uid, "namespace": one.namespace, "name": one.name}
        node.pods.seen({"metadata": metadata, "status": {"reservedFor": users}})
    counts = series_by_metric(node.exposition())
    assert counts["dra_agent_claim_pod_info"] == MAX_CLAIMS * MAX_PODS
    assert f"{MAX_CLAIMS * MAX_PODS:,} series" in PAGE.read_text()
    assert f"{MAX_CONTAINERS:,} series" in PAGE.read_text()
