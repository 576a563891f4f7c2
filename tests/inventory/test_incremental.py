"""An inventory after uevents equals a full one, and costs as much as the events change."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent.host import Host
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.nvidia.nvml_client import NvmlClient
from dra_agent.inventory.settings import (
    AttributeRule,
    InventorySettings,
    PartitionRule,
    PassthroughRule,
    ShareRule,
)
from dra_agent.slices import CurrentSlices, desired_slices
from dra_agent.topology import DeviceKind, LiveTopology, Uevent, scan
from dra_simulate import build, inject
from dra_simulate.tree import replace_file
from eventually import DEADLINE_S
from inventory.changing_host import ChangingHost

DRIVER = "dra-agent.internal"
STEPS = 40
_A = f'device.attributes["{DRIVER}"]'
RULES = InventorySettings(
    exclude=(f'{_A}.vendor == "broadcom"', f"{_A}.misspelled == 1"),
    attributes=(
        AttributeRule(when=f"{_A}.pcieWidth < 16", set={"slow": True}),
        AttributeRule(when=f'{_A}.ifName == "renamed1"', set={"renamed": True}),
    ),
    partition=(PartitionRule(when=f'{_A}.brand == "Flex"', mode="sriov"), PartitionRule(when="true", mode="amd")),
    passthrough=(PassthroughRule(when=f'{_A}.vendor == "nvidia"'),),
    share=(ShareRule(when=f'{_A}.vendor == "intel"', enforcement="dmem"),),
)


class Agent:
    """Follows a host by its events."""

    def __init__(self, host: Host, settings: InventorySettings) -> None:
        self._topology = LiveTopology(host)
        self.collector = Collector(host, settings)
        self.slices = CurrentSlices(node="node-a", driver=DRIVER)
        self.published: list[dict[str, Any]] = []
        self.inventory = self.collector.collect(self._topology.snapshot())
        self.publish()

    def receive(self, events: list[Uevent]) -> None:
        for event in events:
            self._topology.apply(event)
        topology = self._topology.snapshot()
        self.inventory = self.collector.collect(topology, topology.touched_by(events))

    def publish(self) -> None:
        self.published = self.slices.update(self.inventory).slices


def assert_same(found: Inventory, full: Inventory) -> None:
    assert found.devices == full.devices
    assert found.counter_sets == full.counter_sets
    assert sorted(map(str, found.problems)) == sorted(map(str, full.problems))
    assert sorted(map(str, found.excluded)) == sorted(map(str, full.excluded))


@pytest.fixture
def parked(tmp_path: Path) -> Path:
    folder = tmp_path / "parked"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("settings", [InventorySettings(), RULES], ids=["no rules", "rules"])
@pytest.mark.parametrize("profile", ["mixed", "flex170", "aws-p4d"])
@pytest.mark.parametrize("seed", range(2))
def test_an_inventory_after_events_equals_a_full_one(
    tmp_path: Path, parked: Path, profile: str, settings: InventorySettings, seed: int
) -> None:
    host = replace(build(profile, tmp_path / "host"), nvml_library=tmp_path / "missing.so")
    changing, order = ChangingHost(host, parked, seed), random.Random(seed)
    agent = Agent(host, settings)
    late: list[Uevent] = []
    compared = 0
    for _ in range(STEPS):
        events = changing.change()
        if events and order.random() < 0.3:  # a scan for another event may read the change before its event arrives
            late += events
            continue
        agent.receive([*events, *late] if order.random() < 0.6 else events)
        if order.random() < 0.6:
            agent.receive(late)
            late = []
        if late:
            continue
        full_collector = Collector(host, settings)
        full = full_collector.collect(scan(host))
        full_collector.close()
        assert_same(agent.inventory, full)
        expected = desired_slices(full, node="node-a", driver=DRIVER, naming="fixed", published=agent.published)
        agent.publish()
        assert msgspec.json.encode(agent.published) == msgspec.json.encode(expected.slices)
        compared += 1
    assert compared > STEPS / 4
    agent.collector.close()


@pytest.fixture
def dgx(tmp_path: Path) -> Iterator[tuple[Host, Agent]]:
    root = tmp_path / "host"
    host = build("dgx-h100", root)
    agent = Agent(host, InventorySettings(nvml_timeout=DEADLINE_S))
    yield host, agent
    inject.clear(root)
    agent.collector.close()


def change_of(host: Host, address: str) -> Uevent:
    folder = (host.sysfs / "bus/pci/devices" / address).resolve()
    return Uevent("change", f"/{folder.relative_to(host.sysfs)}", "pci")


def test_devices_without_an_event_stay_the_same_objects(
    dgx: tuple[Host, Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, agent = dgx
    calls: list[str] = []
    call = NvmlClient.call

    def counted(library: NvmlClient, name: str, *arguments: Any, **options: Any) -> Any:
        calls.append(name)
        return call(library, name, *arguments, **options)

    monkeypatch.setattr(NvmlClient, "call", counted)
    before, slices = agent.inventory, agent.slices.update(agent.inventory).slices
    nic = agent.inventory.family("nic")[0]
    folder = host.sysfs / "bus/pci/devices" / nic.pci_address
    replace_file(folder / "numa_node", b"1\n" if nic.numa_node != 1 else b"0\n")
    agent.receive([change_of(host, nic.pci_address)])
    same = [device.name for device in agent.inventory.devices if device is before.device(device.name)]
    assert same == [device.name for device in before.devices if device is not nic]
    assert agent.collector.kept == set(same)
    assert calls == [], "no GPU was read for an event of a NIC"
    after = agent.slices.update(agent.inventory).slices
    gpus = [one for one in slices if one["spec"]["pool"]["name"].endswith("/gpu")]
    assert [one for one in after if one["spec"]["pool"]["name"].endswith("/gpu")] == gpus and after != slices


def test_an_event_describes_what_the_topology_does_not_show(dgx: tuple[Host, Agent]) -> None:
    host, agent = dgx
    nic = agent.inventory.family("nic")[0]
    mtu = host.sysfs / "class/net" / nic.identity["ifname"] / "mtu"
    replace_file(mtu, b"4200\n")
    agent.receive([change_of(host, agent.inventory.family("nic")[1].pci_address)])
    assert agent.inventory.device(nic.name) is nic, "nothing announced it"
    agent.receive([change_of(host, nic.pci_address)])
    described = agent.inventory.device(nic.name)
    assert described is not None and described.attributes["mtu"].value == 4200


@pytest.mark.parametrize("devpath", ["/module/nvidia", "/devices/platform/amdgpu_xcp_1", "/bus/pci/drivers/mlx5_core"])
def test_an_event_of_no_function_describes_everything(dgx: tuple[Host, Agent], devpath: str) -> None:
    host, agent = dgx
    nic = agent.inventory.family("nic")[0]
    replace_file(host.sysfs / "class/net" / nic.identity["ifname"] / "mtu", b"4200\n")
    agent.receive([Uevent("add", devpath, "other"), change_of(host, agent.inventory.family("gpu")[0].pci_address)])
    assert agent.collector.kept == frozenset()
    described = agent.inventory.device(nic.name)
    assert described is not None and described.attributes["mtu"].value == 4200


def test_an_equal_device_of_a_full_scan_stays_the_same_object(dgx: tuple[Host, Agent]) -> None:
    host, agent = dgx
    before = agent.inventory
    after = agent.collector.collect(scan(host))
    assert agent.collector.kept == frozenset()
    assert all(one is other for one, other in zip(before.devices, after.devices, strict=True))


def test_a_back_end_that_failed_is_asked_again(dgx: tuple[Host, Agent], monkeypatch: pytest.MonkeyPatch) -> None:
    from dra_agent.inventory.nvidia.backend import NvidiaBackend

    host, agent = dgx
    gpus, other = agent.inventory.family("gpu"), change_of(host, agent.inventory.family("nic")[0].pci_address)

    def fail(*_: object) -> None:
        raise ValueError("a defect")

    with monkeypatch.context() as broken:
        broken.setattr(NvidiaBackend, "devices", fail)
        agent.receive([change_of(host, gpus[0].pci_address)])
        assert agent.inventory.family("gpu") == ()
    agent.receive([other])
    assert agent.inventory.family("gpu") == gpus


def test_another_object_in_the_topology_is_described_without_an_event_of_it(tmp_path: Path) -> None:
    """An event of a physical function changes its virtual functions too, which are not below it."""
    host = build("mixed", tmp_path / "host")
    topology = scan(host)
    collector = Collector(replace(host, nvml_library=tmp_path / "missing.so"))
    before = collector.collect(topology)
    for nic in before.family("nic"):
        function = topology.by_address[nic.pci_address]
        moved = msgspec.structs.replace(function, numa_node=7)
        devices = tuple(moved if one is function else one for one in topology.devices)
        after = collector.collect(msgspec.structs.replace(topology, devices=devices), frozenset())
        described = after.device(nic.name)
        assert described is not None and described.numa_node == 7
        assert nic.name not in collector.kept and len(collector.kept) == len(before.devices) - 1
        collector.collect(topology)
    collector.close()


def test_a_partition_rule_is_not_reported_for_a_gpu_that_it_is_not_evaluated_for_any_more(tmp_path: Path) -> None:
    host = replace(build("flex170", tmp_path / "host"), nvml_library=tmp_path / "missing.so")
    settings = InventorySettings(partition=(PartitionRule(when=f"{_A}.misspelled", mode="sriov"),))
    topology = scan(host)
    collector = Collector(host, settings)
    assert [problem.where for problem in collector.collect(topology).problems] == ["inventory.partition[0].when"]
    bound = tuple(
        msgspec.structs.replace(one, driver="vfio-pci") if one.kind is DeviceKind.GPU else one
        for one in topology.devices
    )
    full = Collector(host, settings)
    changed = msgspec.structs.replace(topology, devices=bound)
    assert_same(collector.collect(changed, frozenset()), full.collect(changed))
    full.close()
    collector.close()
