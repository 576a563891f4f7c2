"""A NIC whose interface is in a pod is published as it was, and as it is once the interface is back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deadlines import a_minute
from dra_agent.claim import ClaimDevice
from dra_agent.device_setup.net import NicConfig, NicSetup
from dra_agent.device_setup.sysfs_writer import RealSysfsWriter
from dra_agent.host import Host
from dra_agent.inventory.collector import Collector, collect
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.passthrough import VfioBindingStore
from dra_agent.inventory.settings import InventorySettings
from dra_agent.prepare.setup import SetupDevice
from dra_agent.topology import DeviceKind, Topology
from inventory.conftest import FunctionMaker

TopologyOf = Callable[..., Topology]

ADDRESS = "0000:3b:00.0"
RULES = InventorySettings(include=('device.attributes["dra-agent.internal"].?ifName.orValue("") == "ens1"',))


class Machine:
    """A host with one NIC, seen by an agent that is started for each look."""

    def __init__(self, host: Host, function: FunctionMaker, topology_of: TopologyOf, state: Path) -> None:
        self.host, self.state, self._function, self._topology_of = host, state, function, topology_of
        self.folder = host.sysfs / "bus/pci/devices" / ADDRESS / "net"
        self.add("ens1")

    def add(self, name: str, mtu: int = 1500) -> None:
        facts = {"address": "02:fc:00:00:00:31", "mtu": mtu, "type": 1, "speed": 25000, "operstate": "up", "flags": 3}
        for folder in (self.folder / name, self.host.sysfs / "class/net" / name):
            folder.mkdir(parents=True)
            for key, value in facts.items():
                (folder / key).write_text(f"{value}\n")

    def remove(self, name: str) -> None:
        shutil.rmtree(self.folder / name)
        shutil.rmtree(self.host.sysfs / "class/net" / name)

    def topology(self) -> Topology:
        names = tuple(sorted(path.name for path in self.folder.iterdir()))
        return self._topology_of(self._function(ADDRESS, DeviceKind.NIC, "0x8086", "0x1592", net=names, infiniband=()))

    def collect(self, settings: InventorySettings = RULES) -> Inventory:
        return collect(self.host, self.topology(), settings, bindings=VfioBindingStore(self.state))

    def prepare(self, uid: str = "a", **interface: Any) -> NicSetup:
        kernel = RealSysfsWriter(self.host.sysfs)
        agent = NicSetup(self.host, self.state, self.state / "host", kernel=kernel, return_timeout_s=0.1)
        (device,) = self.collect().devices
        wanted = msgspec.convert({"interface": interface}, NicConfig)
        agent.check(device, wanted)
        agent.set_up(uid, [SetupDevice(ClaimDevice("n/nic", device.name, ("nic",)), device)], wanted, None, a_minute())
        return agent


@pytest.fixture
def machine(
    host: Host, function: FunctionMaker, topology_of: TopologyOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Machine:
    monkeypatch.setattr("dra_agent.device_setup.net.setup.hidden_processes_reason", lambda host: "")
    return Machine(host, function, topology_of, tmp_path / "state")


def test_a_nic_whose_interface_is_in_a_pod_stays_as_it_was_published(machine: Machine) -> None:
    before = machine.collect()
    assert {"ifName", "mac", "mtu", "linkType", "linkSpeed", "state"} <= before.devices[0].attributes.keys()
    machine.prepare(name="net1")
    machine.remove("ens1")
    assert machine.collect().devices == before.devices, "the include rule matches, and slices are not rewritten"
    machine.prepare(name="net1")  # the kubelet asks again


def test_once_it_is_back_it_is_described_as_it_is(machine: Machine) -> None:
    before = machine.collect()
    agent = machine.prepare(name="net1")
    machine.remove("ens1")
    machine.add("net1", mtu=9000)  # on its way back, under the name that it had in the pod
    assert machine.collect().devices == before.devices
    machine.remove("net1")
    machine.add("ens1", mtu=4000)
    (machine.state / "net/nic-0000-3b-00-0.json").unlink()
    del agent
    (device,) = machine.collect().devices
    assert device.attributes["mtu"].integer == 4000


def test_an_mtu_of_a_claim_is_not_published(machine: Machine) -> None:
    before = machine.collect()
    machine.prepare(mtu=9000)
    for folder in (machine.folder / "ens1", machine.host.sysfs / "class/net/ens1"):
        (folder / "mtu").write_text("9000\n")
    assert machine.collect().devices == before.devices


def test_an_mtu_that_was_restored_is_published_after_an_event_of_another_device(machine: Machine) -> None:
    topology = machine.topology()
    collector = Collector(machine.host, RULES, bindings=VfioBindingStore(machine.state))
    before = collector.collect(topology)

    def set_mtu(mtu: int) -> None:
        for folder in (machine.folder / "ens1", machine.host.sysfs / "class/net/ens1"):
            (folder / "mtu").write_text(f"{mtu}\n")

    machine.prepare(mtu=9000)
    set_mtu(9000)
    assert collector.collect(topology).devices == before.devices, "the health check reads the claim's MTU"
    set_mtu(1500)
    (machine.state / "net/nic-0000-3b-00-0.json").unlink()
    assert collector.collect(topology, frozenset()).devices == before.devices
    assert collector.collect(topology, frozenset()).devices == before.devices
    assert collector.kept == {before.devices[0].name}, "no claim has it any more"
    collector.close()


def test_an_interface_that_no_claim_has_is_missed(machine: Machine) -> None:
    machine.remove("ens1")
    inventory = machine.collect(InventorySettings())
    assert [one.code for one in inventory.excluded] == ["no-interface"] and not inventory.devices


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff", b'{"address": 1}'])
def test_a_damaged_note_costs_the_description_alone(
    machine: Machine, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    machine.prepare(name="net1")
    machine.remove("ens1")
    (machine.state / "net/nic-0000-3b-00-0.json").write_bytes(damage)
    (device,) = machine.collect(InventorySettings()).devices
    assert "ifName" not in device.attributes and "the original state of an interface is not known" in caplog.text
