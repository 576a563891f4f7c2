"""A device that the host comes to use while a claim has it: it stays published for that claim, and for no other one."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dra_agent.agent.device_state import DeviceState
from dra_agent.claimable.divided import divisions
from dra_agent.health.monitor import Monitor
from dra_agent.health.settings import HealthSettings
from dra_agent.host import Host
from dra_agent.inventory import claimability
from dra_agent.inventory.collector import Collector, collect
from dra_agent.inventory.model import Inventory
from dra_agent.inventory.settings import InventorySettings, PassthroughRule
from dra_agent.prepare.ledger import HeldDevice, JournalLedger, LedgerEntry
from dra_agent.topology import DeviceKind, Drm, Topology, Uevent
from dra_agent.topology.model import Sriov
from dra_simulate import build
from inventory.conftest import FunctionMaker

Write = Callable[[str, object], None]
TopologyOf = Callable[..., Topology]

PHYSICAL, VIRTUAL = "0000:3b:00.0", "0000:3b:01.0"
NIC, VF = "nic-0000-3b-00-0", "nic-0000-3b-01-0"
HEADER = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
DRIVER = "dra-agent.internal"
ALLOWING = InventorySettings(host_interfaces=(f'device.attributes["{DRIVER}"].?ifName.orValue("") == "ens1"',))


def default_route(interface: str) -> str:
    gateway = int.from_bytes(socket.inet_aton("10.0.0.1"), "little")
    return f"{HEADER}\n{interface}\t00000000\t{gateway:08X}\t0003\t0\t0\t0\t00000000\t0\t0\t0"


def described(inventory: Inventory) -> dict[str, list[str]]:
    """The causes of each published device."""
    return {device.name: [one.cause for one in device.issues] for device in inventory.devices}


class Nic:
    """A NIC whose use by the host the tests change."""

    def __init__(self, host: Host, write: Write, function: FunctionMaker, topology_of: TopologyOf) -> None:
        self.host, self._function, self._topology_of = host, function, topology_of
        self.net = host.sysfs / "class/net/ens1"
        write("sys/class/net/ens1/flags", "0x1002")
        self.more: dict[str, Any] = {"net": ("ens1",)}
        self.virtual: dict[str, Any] = {"net": ("ens1v0",)}

    def topology(self) -> Topology:
        physical = self._function(PHYSICAL, DeviceKind.NIC, "0x8086", "0x1592", **self.more)
        virtual = [
            self._function(one, DeviceKind.NIC, "0x8086", "0x1889", physfn=PHYSICAL, **self.virtual)
            for one in physical.virtfns
        ]
        return self._topology_of(physical, *virtual)

    def collect(self, *held: str, settings: InventorySettings | None = None) -> Inventory:
        return collect(self.host, self.topology(), settings, held=held)


@pytest.fixture
def nic(host: Host, write: Write, function: FunctionMaker, topology_of: TopologyOf) -> Nic:
    return Nic(host, write, function, topology_of)


def route(nic: Nic, write: Write) -> None:
    write("proc/net/route", default_route("ens1"))


def master(nic: Nic, write: Write) -> None:
    (nic.net / "master").symlink_to("../bond0")


def vlan(nic: Nic, write: Write) -> None:
    (nic.net / "upper_ens1.5").symlink_to("../ens1.5")


def address(nic: Nic, write: Write) -> None:
    write("proc/net/if_inet6", "20010db8000000000000000000000007 02 40 00 80     ens1")


def division(nic: Nic, write: Write) -> None:
    nic.more |= {"sriov": Sriov(64, 1), "virtfns": (VIRTUAL,)}


@pytest.mark.parametrize("use", [route, master, vlan, address, division])
def test_a_device_that_comes_into_use_stays_for_its_claim_alone(
    nic: Nic, write: Write, use: Callable[[Nic, Write], None]
) -> None:
    assert described(nic.collect()) == described(nic.collect(NIC)) == {NIC: []}
    use(nic, write)
    held = nic.collect(NIC)
    assert described(held) == {NIC: ["host-use"]}
    (device,) = held.devices
    assert device.health == "unhealthy" and "it would not be published if no claim had it" in str(device.health_reason)
    assert "host_use" not in device.identity, "the claim that has it can be prepared again"
    released = nic.collect()
    assert NIC not in described(released) and NIC in [one.name for one in released.excluded]


def test_an_address_beside_rdma_is_no_reason_to_keep_claims_away(nic: Nic, write: Write) -> None:
    nic.more["infiniband"] = ("mlx5_0",)
    address(nic, write)
    for held in ((), (NIC,)):
        (device,) = nic.collect(*held).devices
        assert device.issues == () and "has the address 2001:db8::7/64" in device.identity["host_use"]
    (allowed,) = nic.collect(settings=ALLOWING).devices
    assert "host_use" not in allowed.identity and allowed.identity["host_address"] == "allowed"


def test_what_is_shared_with_the_host_is_not_offered_for_passthrough(nic: Nic, write: Write) -> None:
    """Its driver would go, and the host's address with it: no claim could be prepared."""
    nic.more |= {"infiniband": ("mlx5_0",), "iommu_group": 7}
    address(nic, write)
    everything = (PassthroughRule("true"),)
    inventory = nic.collect(settings=InventorySettings(passthrough=everything))
    assert (described(inventory), [one.code for one in inventory.excluded]) == ({}, ["host-address"])
    route(nic, write)
    inventory = nic.collect(settings=InventorySettings(passthrough=everything, host_interfaces=("true",)))
    assert (described(inventory), [one.code for one in inventory.excluded]) == ({}, ["host-interface"])


def test_virtual_functions_are_offered_when_the_claim_of_their_physical_one_is_released(nic: Nic, write: Write) -> None:
    division(nic, write)
    held = nic.collect(NIC)
    assert [(one.name, one.code) for one in held.excluded] == [(VF, "physical-function")]
    assert described(nic.collect()) == {VF: []}
    assert described(nic.collect(VF)) == {VF: []}, "its own claim is none of the physical function"


def test_a_rule_for_the_physical_function_allows_claims_of_both(nic: Nic, write: Write) -> None:
    division(nic, write)
    for held in ((), (NIC,), (VF,), (NIC, VF)):
        physical, virtual = nic.collect(*held, settings=ALLOWING).devices
        assert "virtual functions" in physical.identity["host_use"] and "host_use" not in virtual.identity
        assert physical.issues == virtual.issues == ()


@pytest.mark.parametrize("name", ["mlx5_core.sf.4", "ice.sf.4"])
@pytest.mark.parametrize("below", ["", "/net/enp59s0f0s88", None])
def test_an_adapter_with_subfunctions_is_published_by_a_rule_alone(nic: Nic, below: str | None, name: str) -> None:
    """Its representor is there before it is active, and nothing of the adapter's own entry changes then."""
    nic.more["net"] = ("ens1", "ens1pf0sf88")
    (nic.host.sysfs / "class/net/ens1pf0sf88").mkdir()
    topology = nic.topology()
    collector = Collector(nic.host)
    assert described(collector.collect(topology)) == {NIC: []}
    (nic.host.sysfs / "bus/pci/devices" / PHYSICAL / name).mkdir()
    touched = None
    if below is not None:
        event = Uevent("add", f"/devices/pci0000:3a/{PHYSICAL}/{name}{below}", "net" if below else "auxiliary")
        touched = topology.touched_by([event])
    inventory = collector.collect(topology, touched)
    assert [(one.code, one.reason) for one in inventory.excluded] == [
        ("physical-function", "it has 1 subfunctions, which work through it")
    ]
    collector.close()
    (permitted,) = nic.collect(settings=ALLOWING).devices
    assert "subfunctions" in permitted.identity["host_use"]


def test_an_event_costs_no_reads_for_other_adapters(nic: Nic, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(sysfs: Path, address: str) -> str | None:
        read.append(address)
        return divisions(sysfs, address)

    monkeypatch.setattr(claimability, "divisions", counted)
    collector = Collector(nic.host)
    for touched in (None, frozenset({PHYSICAL})):
        collector.collect(nic.topology(), touched)
    assert read == [], "one interface"
    nic.more["net"] = ("ens1", "ens1pf0sf88")
    (nic.host.sysfs / "class/net/ens1pf0sf88").mkdir()
    topology = nic.topology()
    for touched, times in ((frozenset[str](), 1), (frozenset({VIRTUAL}), 1), (frozenset({PHYSICAL}), 2), (None, 3)):
        collector.collect(topology, touched)
        assert read == [PHYSICAL] * times
    collector.close()


def virtual_route(nic: Nic, write: Write) -> None:
    write("proc/net/route", default_route("ens1v0"))


def virtual_address(nic: Nic, write: Write) -> None:
    write("proc/net/if_inet6", "20010db8000000000000000000000007 02 40 00 80   ens1v0")


@pytest.mark.parametrize(("use", "code"), [(virtual_route, "host-interface"), (virtual_address, "host-address")])
@pytest.mark.parametrize("held", [(), (NIC,), (VF,), (NIC, VF)])
def test_a_rule_for_the_physical_function_permits_no_use_of_the_virtual_one(
    nic: Nic, write: Write, use: Callable[[Nic, Write], None], code: str, held: tuple[str, ...]
) -> None:
    division(nic, write)
    use(nic, write)
    inventory = nic.collect(*held, settings=ALLOWING)
    if VF in held:
        assert described(inventory) == {NIC: [], VF: ["host-use"]}
    else:
        assert described(inventory) == {NIC: []}
        assert [(one.name, one.code) for one in inventory.excluded] == [(VF, code)]


@pytest.mark.parametrize("held", [(VF,), (NIC, VF)])
def test_a_claimed_virtual_function_that_has_lost_its_driver_keeps_its_taint(nic: Nic, held: tuple[str, ...]) -> None:
    nic.more |= {"sriov": Sriov(64, 1), "virtfns": (VIRTUAL,)}
    nic.virtual = {"net": (), "driver": None}
    assert described(nic.collect(*held, settings=ALLOWING)) == {NIC: [], VF: ["not-claimable"]}


@pytest.mark.parametrize("use", [None, route, address])
def test_the_older_setting_permits_no_division(
    nic: Nic, write: Write, use: Callable[[Nic, Write], None] | None
) -> None:
    if use is not None:
        use(nic, write)
    older = InventorySettings(host_uplink="include")
    assert described(nic.collect(settings=older)) == {NIC: []}
    division(nic, write)
    assert described(nic.collect(settings=older)) == {VF: []}
    assert described(nic.collect(NIC, settings=older)) == {NIC: ["host-use"]}


def test_an_address_that_a_rule_allows_is_not_offered_for_passthrough(nic: Nic, write: Write) -> None:
    """Its driver would go, and with it the host's address, name and MTU."""
    nic.more |= {"iommu_group": 7}
    address(nic, write)
    settings = InventorySettings(passthrough=(PassthroughRule("true"),), host_interfaces=("true",))
    inventory = nic.collect(settings=settings)
    assert (described(inventory), [one.code for one in inventory.excluded]) == ({}, ["host-address"])


@pytest.mark.parametrize(
    ("link_layer", "codes"), [("Ethernet", ["no-interface"]), ("InfiniBand", []), ("Unspecified", []), (None, [])]
)
def test_rdma_whose_interface_another_plugin_has_moved_is_excluded(
    nic: Nic, write: Write, link_layer: str | None, codes: list[str]
) -> None:
    nic.more = {"infiniband": ("mlx5_0",)}
    if link_layer is not None:
        write(f"sys/bus/pci/devices/{PHYSICAL}/infiniband/mlx5_0/ports/1/link_layer", link_layer)
    inventory = nic.collect()
    assert [one.code for one in inventory.excluded] == codes and len(inventory.devices) == 1 - len(codes)
    (held,) = nic.collect(NIC).devices
    assert (held.issues, held.health_reason) == ((), None), "the pod that has the claim may have the interface, too"


def test_the_link_layer_is_read_again_after_an_event(nic: Nic, write: Write) -> None:
    """The kernel announces an RDMA device before all of its ports."""
    nic.more = {"infiniband": ("mlx5_0",)}
    topology = nic.topology()
    collector = Collector(nic.host)
    assert described(collector.collect(topology)) == {NIC: []}
    write(f"sys/bus/pci/devices/{PHYSICAL}/infiniband/mlx5_0/ports/1/link_layer", "Ethernet")
    assert described(collector.collect(topology, frozenset({VIRTUAL}))) == {NIC: []}
    assert described(collector.collect(topology, frozenset({PHYSICAL}))) == {}
    collector.close()


def test_a_claim_keeps_a_virtual_function_whose_physical_one_is_claimed_too(nic: Nic, write: Write) -> None:
    """The operator has removed the rule that allowed both."""
    division(nic, write)
    assert described(nic.collect(NIC, VF)) == {NIC: ["host-use"], VF: ["host-use"]}


def test_a_partition_holds_its_whole_device(host: Host, function: FunctionMaker, topology_of: TopologyOf) -> None:
    console = function(PHYSICAL, DeviceKind.GPU, "0x1af4", "0x1050", drm=Drm("card0", "renderD128"))
    topology = topology_of(console)
    assert described(collect(host, topology)) == {}
    assert described(collect(host, topology, held=["gpu-0000-3b-00-0-part-1"])) == {"gpu-0000-3b-00-0": ["host-use"]}
    assert described(collect(host, topology, held=["gpu-0000-3b-01-0", "gpu-0000-3b-00", "x", ""])) == {}


@pytest.mark.parametrize(
    "facts", [{"driver": None}, {"driver": "pci-stub"}, {"driver": "uio_pci_generic", "uio": ("uio0",)}]
)
def test_a_claimed_device_that_has_lost_its_driver_is_unhealthy_and_not_missing(nic: Nic, facts: Any) -> None:
    nic.more = facts
    assert described(nic.collect(NIC)) == {NIC: ["not-claimable"]}
    assert described(nic.collect()) == {}


def test_a_use_is_observed_although_the_device_is_not_described_again(nic: Nic, write: Write) -> None:
    collector = Collector(nic.host)
    topology = nic.topology()
    collector.collect(topology, held=[NIC])
    route(nic, write)
    collector.collect(topology, frozenset(), [NIC])
    assert NIC not in collector.kept
    collector.close()


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute", "none"])
def test_the_slice_keeps_the_device_with_a_taint_until_its_release(tmp_path: Path, effect: Any) -> None:
    """Whatever taint unhealthy devices get: the pod that has the device stays, and no other one comes."""
    host = build("dgx-h100", tmp_path / "host")
    name, interface = "nic-0000-29-00-0", "ens6np0"
    with JournalLedger(tmp_path, "boot") as ledger:
        state = DeviceState(
            host,
            InventorySettings(include=('device.attributes["dra-agent.internal"].type == "nic"',)),
            node="n",
            driver=DRIVER,
            monitor=Monitor(HealthSettings(degraded=effect), DRIVER),
            ledger=ledger,
        )
        assert _published(state)[name].get("taints") is None
        ledger.start(LedgerEntry("uid", "ns", "claim", (HeldDevice("n/nic", name, "nic"),)), durable=True)
        (host.proc / "net").mkdir(parents=True, exist_ok=True)
        (host.proc / "net/route").write_text(default_route(interface))
        assert name in state.refresh([], rescan=False).changed
        (taint,) = _published(state)[name]["taints"]
        assert (taint["key"], taint["effect"]) == (f"{DRIVER}/host-use", "NoSchedule")
        assert state.lookup("n/nic", name) is not None, "the kubelet asks for it again"
        rows = {row.device: row for row in state.published_health.rows()}
        assert f"{interface} carries the default route" in rows[name].message
        ledger.release("uid")
        assert name in state.refresh([], rescan=False).removed
        state.close()


def _published(state: DeviceState) -> dict[str, dict[str, Any]]:
    return {device["name"]: device for slice_ in state.slices() for device in slice_["spec"]["devices"]}


@pytest.mark.parametrize(
    ("section", "rule", "message"),
    [
        ("host_interfaces", f'device.attributes["{DRIVER}"].ifName == "eno7"', "is true for no device of this host"),
        ("host_interfaces", f'device.attributes["{DRIVER}"].ifname == "ens1"', "has no value for any device"),
        ("displays", "true", None),
        ("host_interfaces", 'device.attributes["resource.kubernetes.io"].pciBusID == "0000:3b:00.0"', None),
    ],
)
@pytest.mark.parametrize("used", [False, True])
def test_a_rule_for_a_device_that_does_not_exist_is_named_once(
    nic: Nic, write: Write, section: str, rule: str, message: str | None, used: bool
) -> None:
    if used:
        route(nic, write)
    problems = nic.collect(settings=msgspec.convert({section: [rule]}, InventorySettings)).problems
    if message is None:
        assert problems == (), "it exists, or the host has no such devices at all"
        return
    (problem,) = problems
    assert (problem.where, problem.severity) == (f"inventory.{section}[0]", "warning") and message in problem.message


def test_the_older_setting_is_no_rule_for_a_device(host: Host, topology_of: TopologyOf) -> None:
    assert collect(host, topology_of(), InventorySettings(host_uplink="include")).problems == ()
