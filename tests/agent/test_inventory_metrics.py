"""What is left of a node for claims: counts by kind of partition, free memory, claim ages and taints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent import _native
from dra_agent.conflicts import DeviceConflicts, SavedConflicts, save_conflicts
from dra_agent.health.monitor import Summary
from dra_agent.inventory.api import Attribute, Capacity, RequestPolicy, RequestRange, Taint
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Device, Exclusion, Inventory
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.metrics.allocatable import AllocatableTracker, FreeMemory, Held
from dra_agent.metrics.registry import Metrics
from dra_agent.metrics.snapshot import ClaimGroup, DeviceTaint, MetricsSnapshot, collect
from dra_agent.prepare.ledger import HeldDevice, JournalLedger, LedgerEntry
from dra_agent.prepare.record import ClaimRecord, SetupRecord
from dra_agent.topology import LiveTopology
from dra_simulate import build_machine
from dra_simulate.profiles import load_profile
from inventory.pair import NAME, PAIR
from publish.node import device

MIB = 1 << 20


def inventory_of(machine: Any, path: Path, mode: Any) -> Inventory:
    host = build_machine(machine, path)
    rule = PartitionRule(when='device.attributes["dra-agent.internal"].type == "gpu"', mode=mode)
    collector = Collector(host, InventorySettings(partition=(rule,)))
    try:
        return collector.collect(LiveTopology(host).snapshot())
    finally:
        collector.close()


@pytest.fixture(scope="module")
def mig(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    """Return two H100 with MIG partitions."""
    return inventory_of(PAIR, tmp_path_factory.mktemp("mig") / "host", "mig")


@pytest.fixture(scope="module")
def amd(tmp_path_factory: pytest.TempPathFactory) -> Inventory:
    """Return eight MI300X with partitions."""
    return inventory_of(load_profile("mi300x"), tmp_path_factory.mktemp("amd") / "host", "amd")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[JournalLedger]:
    with JournalLedger(tmp_path, "boot") as opened:
        yield opened


def prepare(ledger: JournalLedger, inventory: Inventory, *names: str, payload: Any = None) -> None:
    """Record a claim for each of the devices, as the preparer does: with the parent of a partition."""
    for name in names:
        found = inventory.device(name)
        assert found is not None
        held = [HeldDevice(f"n/{found.family}", name, "r")]
        if parent := found.identity.get("parent"):
            held.append(HeldDevice("n/gpu", parent, "", share_id=name, shared=True))
        ledger.start(LedgerEntry(f"uid-{name}", "team", "c", tuple(held)), durable=False)
        ledger.complete(f"uid-{name}", payload)


def snapshot(path: Path, inventory: Inventory, ledger: JournalLedger) -> MetricsSnapshot:
    return collect(
        path,
        "n",
        inventory=inventory,
        health=Summary(),
        ledger=ledger,
        reclaim=None,
        tracker=AllocatableTracker(),
        driver="dra-agent.internal",
    )


def counts(found: MetricsSnapshot) -> dict[str, int]:
    return {kind.partition: count for kind, count in found.allocatable.items() if kind.family == "gpu"}


def test_partitions_are_counted_as_they_fit_together(tmp_path: Path, mig: Inventory, ledger: JournalLedger) -> None:
    before = {"1g.10gb": 14, "1g.10gb+me": 2, "1g.20gb": 8, "2g.20gb": 6, "3g.40gb": 4, "4g.40gb": 2, "7g.80gb": 2}
    assert counts(snapshot(tmp_path, mig, ledger)) == {**before, "whole": 2}
    prepare(ledger, mig, f"{NAME}-mig-1g-10gb-0")
    after = {"1g.10gb": 13, "1g.10gb+me": 2, "1g.20gb": 7, "2g.20gb": 5, "3g.40gb": 3, "4g.40gb": 1, "7g.80gb": 1}
    assert counts(snapshot(tmp_path, mig, ledger)) == {**after, "whole": 1}


def test_a_prepared_partition_leaves_the_others_of_its_gpu(
    tmp_path: Path, mig: Inventory, ledger: JournalLedger
) -> None:
    prepare(ledger, mig, f"{NAME}-mig-1g-10gb-0")
    states = {one.name: one.state for one in snapshot(tmp_path, mig, ledger).devices}
    of_gpu = [state for name, state in states.items() if name.startswith(NAME)]
    assert of_gpu.count("prepared") == 1 and states[NAME] == "blocked"
    assert states[f"{NAME}-mig-1g-10gb-1"] == states[f"{NAME}-mig-3g-40gb-4"] == "free"


def test_a_created_partition_has_the_uuid_that_its_set_up_recorded(
    tmp_path: Path, mig: Inventory, ledger: JournalLedger
) -> None:
    created, other = f"{NAME}-mig-1g-10gb-0", f"{NAME}-mig-1g-10gb-1"
    step = SetupRecord("v1", "MigConfig", (created,), done=True, record={created: {"uuid": "MIG-1", "gi": 7, "ci": 0}})
    prepare(ledger, mig, created, payload=msgspec.to_builtins(ClaimRecord(setups=(step,))))
    uuids = {one.name: one.uuid for one in snapshot(tmp_path, mig, ledger).devices}
    assert (uuids[created], uuids[other]) == ("MIG-1", "")
    assert uuids[NAME].startswith("GPU-")


def test_partitions_of_another_amd_mode_cannot_be_claimed(
    tmp_path: Path, amd: Inventory, ledger: JournalLedger
) -> None:
    assert counts(snapshot(tmp_path, amd, ledger)) == {"whole": 8, "dpx-nps1": 16, "qpx-nps1": 32, "cpx-nps1": 64}
    name = next(one.name for one in amd.devices if one.name.endswith("-cpx-0"))
    prepare(ledger, amd, name)
    found = snapshot(tmp_path, amd, ledger)
    assert counts(found) == {"whole": 7, "dpx-nps1": 14, "qpx-nps1": 28, "cpx-nps1": 63}
    (memory,) = (memory for (family, _), memory in found.memory.items() if family == "gpu")
    assert memory == FreeMemory((8 * 196592 - 24574) * MIB, (7 * 196592 + 24574) * MIB, 196592 * MIB)


def greatest(devices: list[Device], left: dict[str, int]) -> int:
    """Return the greatest number of the devices that fit together, by trying all sets."""
    amounts = [
        {name: _native.quantity_value(counter.value) for name, counter in one.consumes_counters[0].counters.items()}
        for one in devices
    ]
    for size in range(len(devices), 0, -1):
        for chosen in combinations(amounts, size):
            if all(sum(one.get(name, 0) for one in chosen) <= amount for name, amount in left.items()):
                return size
    return 0


def test_the_count_is_the_greatest_that_any_choice_has(mig: Inventory) -> None:
    of_gpu = [one for one in mig.devices if one.name.startswith(NAME)]
    counters = next(one for one in mig.counter_sets["gpu"] if one.name == NAME)
    partitions = [one for one in of_gpu if one.name != NAME]
    tracker = AllocatableTracker()
    others = frozenset(("gpu", one.name) for one in mig.devices if one not in of_gpu and one.name.count("-mig-") == 0)
    for taken in partitions:
        left = {name: _native.quantity_value(counter.value) for name, counter in counters.counters.items()}
        for name, counter in taken.consumes_counters[0].counters.items():
            left[name] -= _native.quantity_value(counter.value)
        found = tracker.compute(mig, Held(others | {("gpu", taken.name)})).devices
        for kind, count in found.items():
            if kind.family == "gpu":
                same = [one for one in partitions if kind.partition == str(_profile(one)) and one is not taken]
                assert count == greatest(same, left), (taken.name, kind)


def _profile(one: Device) -> object:
    return one.attributes["profile"].value


def test_fragmentation_is_the_largest_that_fits_against_the_free_memory(
    tmp_path: Path, mig: Inventory, ledger: JournalLedger
) -> None:
    def memory() -> FreeMemory:
        (found,) = snapshot(tmp_path, mig, ledger).memory.values()
        return found

    assert memory() == FreeMemory(2 * 81559 * MIB, 2 * 81559 * MIB, 81559 * MIB)
    prepare(ledger, mig, f"{NAME}-mig-1g-10gb-0", f"{NAME}-mig-1g-10gb-4")
    found = memory()
    assert found.total == (81559 + 81152 - 2 * 9984) * MIB
    assert found.fitting == (81559 + 20096) * MIB and found.largest == 81559 * MIB


def test_tainted_and_excluded_devices_cannot_be_claimed(tmp_path: Path, ledger: JournalLedger) -> None:
    taints = (Taint(key="d/xid-79", effect="NoExecute"), Taint(key="d/ecc", effect="None"))
    inventory = Inventory((device(0), device(1, taints=taints), device(2, taints=taints[1:])))
    found = snapshot(tmp_path, inventory, ledger)
    assert counts(found) == {"whole": 2}
    assert found.memory == {("gpu", ""): FreeMemory(160 << 30, 160 << 30, 80 << 30)}
    assert {one.effect: one for one in found.taints if one.device == inventory.devices[1].name} == {
        "NoExecute": DeviceTaint(inventory.devices[1].name, "xid-79", "NoExecute"),
        "None": DeviceTaint(inventory.devices[1].name, "ecc", "None"),
    }
    left = AllocatableTracker().compute(inventory, Held(frozenset()), (inventory.devices[0].name,))
    assert list(left.devices.values()) == [1]


def test_a_shared_device_counts_while_its_smallest_share_fits(tmp_path: Path, ledger: JournalLedger) -> None:
    policy = RequestPolicy(default="8Gi", valid_range=RequestRange(min="8Gi", max="80Gi"))
    shared = msgspec.structs.replace(
        device(0, allow_multiple_allocations=True), capacity={"memory": Capacity("80Gi", policy)}
    )
    inventory = Inventory((shared,))

    def take(uid: str, amount: str) -> FreeMemory:
        held = HeldDevice("n/gpu", shared.name, "r", share_id=uid, shared=True)
        ledger.start(LedgerEntry(uid, "team", uid, (held,)), durable=False)
        used = {"pool": "n/gpu", "device": shared.name, "requests": ["r"], "share_id": uid}
        ledger.complete(uid, {"devices": [{**used, "consumed_capacity": {"memory": amount}}]})
        found = snapshot(tmp_path, inventory, ledger)
        assert found.devices[0].state == "prepared"
        totals.append(counts(found)["whole"])
        return found.memory["gpu", ""]

    totals: list[int] = []
    assert take("a", "70Gi") == FreeMemory(10 << 30, 10 << 30, 10 << 30)
    assert take("b", "4Gi").total == 6 << 30
    assert totals == [1, 0]


def test_claims_have_an_age_by_state(tmp_path: Path, ledger: JournalLedger) -> None:
    long_ago = LedgerEntry("a", "team", "a", (), started_at=1.0)
    ledger.start(long_ago, durable=False)
    ledger.complete("a", None)
    ledger.start(LedgerEntry("b", "team", "b", ()), durable=False)
    claims = snapshot(tmp_path, Inventory(), ledger).claims
    assert claims["preparing"] == ClaimGroup(1, 0.0), "a record of an earlier agent has no time"
    assert claims["prepared"].count == 1 and claims["prepared"].oldest_s > 1e9


def test_the_series_of_what_is_left_name_no_claim(mig: Inventory, tmp_path: Path, ledger: JournalLedger) -> None:
    tainted = msgspec.structs.replace(
        mig.devices[-1], taints=(Taint(key="d/xid-79", effect="NoSchedule"),), attributes={"x": Attribute.of("")}
    )
    found = snapshot(tmp_path, Inventory((*mig.devices[:-1], tainted), mig.counter_sets), ledger)
    text = Metrics(lambda: found).render()[0].decode()
    labels = 'family="gpu",partition="3g.40gb",pool="n/gpu",product="NVIDIA H100 80GB HBM3"'
    assert f"dra_agent_allocatable_devices{{{labels}}} 4.0" in text
    assert f'dra_agent_device_taints{{cause="xid-79",device="{tainted.name}",effect="NoSchedule"}} 1.0' in text
    assert "dra_agent_largest_free_device_memory_bytes{" in text and "dra_agent_fitting_memory_bytes{" in text


def test_devices_that_are_not_published_are_counted_by_code(
    mig: Inventory, ledger: JournalLedger, tmp_path: Path
) -> None:
    excluded = (Exclusion("nic-a", "a bond", "host-interface"), Exclusion("nic-b", "a bridge", "host-interface"))
    inventory = msgspec.structs.replace(mig, excluded=(*excluded, Exclusion("gpu-c", "no driver", "no-driver")))
    first, second, third = (one.name for one in mig.devices[:3])
    managers = dict.fromkeys((first, second, third), "driver gpu.nvidia.com")
    conflicts = DeviceConflicts(managers, unmatched={third: "by index"})
    save_conflicts(tmp_path, SavedConflicts(conflicts))
    assert _excluded(tmp_path, inventory, ledger) == {
        "host-interface": 2,
        "no-driver": 1,
        "other-manager": 2,
        "unmatched-manager": 1,
    }
    save_conflicts(tmp_path, SavedConflicts(conflicts, published=True))
    assert _excluded(tmp_path, inventory, ledger) == {"host-interface": 2, "no-driver": 1}
    assert _excluded(tmp_path, mig, ledger) == {}


def _excluded(state_dir: Path, inventory: Inventory, ledger: JournalLedger) -> dict[str, float]:
    text = Metrics(lambda: snapshot(state_dir, inventory, ledger)).render()[0].decode()
    return {
        code: float(count) for code, count in re.findall(r'^dra_agent_excluded_devices{code="(.+)"} (.+)$', text, re.M)
    }
