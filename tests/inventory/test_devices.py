"""Devices of single families on hosts of a few files, and what damage does to them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_agent.host import Host
from dra_agent.inventory.backend import backend_of
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology import DeviceKind, Drm, Link, PciFunction, Sriov, Topology, scan

Write = Callable[[str, object], None]
Make = Callable[..., PciFunction]
TopologyOf = Callable[..., Topology]
PCI = "sys/bus/pci/devices"


def only(inventory: Inventory) -> Device:
    (device,) = inventory.devices
    return device


def values(device: Device) -> dict[str, bool | int | str]:
    return {name: attribute.value for name, attribute in device.attributes.items()}


def test_an_ethernet_adapter_with_rdma(host: Host, write: Write, function: Make, topology_of: TopologyOf) -> None:
    nic = function(
        "0000:3b:00.0",
        DeviceKind.NIC,
        "0x15b3",
        "0x1021",
        driver="mlx5_core",
        iommu_group=17,
        net=("ens1",),
        infiniband=("mlx5_0",),
        uverbs=("uverbs0",),
        sriov=Sriov(16, 0),
        parents=("0000:3a:01.0",),
        # The slot is slower than the adapter; that the link idles at 2.5 GT/s is not its property.
        link=Link(1, 8, 5, 16),
        card_link=Link(1, 8, 4, 16),
    )
    net = f"{PCI}/0000:3b:00.0/net/ens1"
    for name, value in {"address": "a0:88:c2:b4:02:fa", "mtu": 9000, "type": 1, "speed": 200000}.items():
        write(f"{net}/{name}", value)
    write(f"{net}/operstate", "up")
    inventory = collect(host, topology_of(nic))
    assert inventory.problems == ()
    device = only(inventory)
    assert device.name == "nic-0000-3b-00-0"
    assert values(device) == {
        "type": "nic",
        "vendor": "mellanox",
        "vendorID": "0x15b3",
        "deviceID": "0x1021",
        "productName": "ConnectX-7",
        "driver": "mlx5_core",
        "pcieGeneration": 4,
        "pcieWidth": 16,
        "iommuGroup": 17,
        "resource.kubernetes.io/pcieRoot": "pci0000:3b",
        "resource.kubernetes.io/pciBusID": "0000:3b:00.0",
        "resource.kubernetes.io/numaNode": 0,
        "ifName": "ens1",
        "mac": "a0:88:c2:b4:02:fa",
        "mtu": 9000,
        "linkType": "ethernet",
        "linkSpeed": 200000,
        "state": "up",
        "rdma": True,
        "rdmaDevice": "mlx5_0",
        "sriovVfs": 0,
        "isSriovVf": False,
    }
    assert [(node.path, node.role) for node in device.nodes] == [
        ("/dev/infiniband/uverbs0", "uverbs"),
        ("/dev/infiniband/rdma_cm", "rdma-cm"),
    ]


@pytest.mark.parametrize(
    ("removable", "expected"), [("removable", True), ("unknown", None), ("fixed", None), (None, None)]
)
def test_a_device_behind_an_external_port(
    removable: str | None,
    expected: bool | None,
    host: Host,
    write: Write,
    function: Make,
    topology_of: TopologyOf,
) -> None:
    gpu = function("0000:06:00.0", DeviceKind.GPU, "0x1002", "0x7551", driver="amdgpu", drm=Drm("card0", "renderD128"))
    if removable is not None:
        write(f"{PCI}/0000:06:00.0/removable", removable)
    assert values(only(collect(host, topology_of(gpu)))).get("external") is expected


def test_a_link_that_is_down_has_no_speed(host: Host, write: Write, function: Make, topology_of: TopologyOf) -> None:
    nic = function("0000:3b:00.0", DeviceKind.NIC, "0x8086", "0x1592", net=("ens1",), numa_node=None)
    for name, value in {"speed": -1, "operstate": "down", "type": 1, "mtu": 1500}.items():
        write(f"{PCI}/0000:3b:00.0/net/ens1/{name}", value)
    device = only(collect(host, topology_of(nic)))
    assert values(device)["state"] == "down"
    assert values(device)["rdma"] is False
    assert not {"linkSpeed", "resource.kubernetes.io/numaNode", "rdmaDevice", "sriovVfs", "mac"} & set(values(device))


def test_an_infiniband_adapter_whose_interface_is_elsewhere(
    host: Host, write: Write, function: Make, topology_of: TopologyOf
) -> None:
    nic = function("0000:3b:00.0", DeviceKind.NIC, "0x15b3", "0x1021", infiniband=("mlx5_3",), uverbs=("uverbs3",))
    port = f"{PCI}/0000:3b:00.0/infiniband/mlx5_3/ports/1"
    for name, value in {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}.items():
        write(f"{port}/{name}", value)
    write(f"{port}/gids/0", "fec0:0000:0000:0001:a088:c203:00ab:02fa")
    found = values(only(collect(host, topology_of(nic))))
    assert (found["ibSubnetPrefix"], found["ibPortGUID"]) == ("0xfec0000000000001", "0xa088c20300ab02fa")
    assert (found["linkType"], found["linkSpeed"], found["state"]) == ("infiniband", 400000, "up")
    assert "ifName" not in found
    write(f"{port}/state", "1: DOWN")
    write(f"{port}/rate", "2.5 Gb/sec (1X SDR)")
    found = values(only(collect(host, topology_of(nic))))
    assert found["state"] == "down"
    assert not {"linkSpeed", "ibSubnetPrefix", "ibPortGUID"} & set(found), "the subnet manager sets them with the link"


def test_the_uplink_port_is_taken_and_not_a_representor(
    host: Host, write: Write, function: Make, topology_of: TopologyOf
) -> None:
    nic = function("0000:3b:00.0", DeviceKind.NIC, "0x15b3", "0x101d", net=("eth0", "eth1", "eth2"))
    for name, port in (("eth0", "pf0vf0"), ("eth1", "p1"), ("eth2", "p0")):
        write(f"{PCI}/0000:3b:00.0/net/{name}/phys_port_name", port)
    write(f"{PCI}/0000:3b:00.0/net/eth1/dev_port", 1)
    assert values(only(collect(host, topology_of(nic))))["ifName"] == "eth2"


def test_the_hosts_own_uplink_is_not_published_unless_asked_for(
    host: Host, write: Write, function: Make, topology_of: TopologyOf
) -> None:
    nics = [function(f"0000:3b:00.{n}", DeviceKind.NIC, "0x14e4", "0x1750", net=(f"eno{n}",)) for n in range(2)]
    write("proc/net/route", "Iface\tDestination\n" + "eno1\t00000000\t0100000A\t0003\t0\t0\t0\t00000000")
    inventory = collect(host, topology_of(*nics))
    assert [device.name for device in inventory.devices] == ["nic-0000-3b-00-0"]
    (exclusion,) = inventory.excluded
    assert exclusion.name == "nic-0000-3b-00-1"
    assert exclusion.code == "host-interface" and "the host uses it: eno1 carries" in exclusion.reason
    inventory = collect(host, topology_of(*nics), InventorySettings(host_uplink="include"))
    assert len(inventory.devices) == 2
    assert inventory.excluded == ()


def test_virtual_functions_are_devices_and_their_adapter_by_a_rule(
    host: Host, function: Make, topology_of: TopologyOf
) -> None:
    physical = function(
        "0000:3b:00.0",
        DeviceKind.NIC,
        "0x8086",
        "0x1592",
        sriov=Sriov(64, 1),
        virtfns=("0000:3b:01.0",),
        net=("ens1",),
    )
    virtual = function("0000:3b:01.0", DeviceKind.NIC, "0x8086", "0x1889", physfn="0000:3b:00.0", net=("ens1v0",))
    topology = topology_of(physical, virtual)
    inventory = collect(host, topology)
    assert only(inventory).identity["physfn"] == "0000:3b:00.0"
    (exclusion,) = inventory.excluded
    assert (exclusion.name, exclusion.code) == ("nic-0000-3b-00-0", "physical-function")
    both = collect(host, topology, InventorySettings(host_interfaces=("true",)))
    first, second = both.devices
    assert (values(first)["isSriovVf"], values(second)["isSriovVf"]) == (False, True)
    assert (values(first)["sriovVfs"], "sriovVfs" in values(second)) == (1, False)
    assert "virtual functions" in first.identity["host_use"] and both.excluded == ()


def test_a_xilinx_card_is_its_user_function(host: Host, write: Write, function: Make, topology_of: TopologyOf) -> None:
    management = function("0000:af:00.0", DeviceKind.FPGA, "0x10ee", "0x5004", driver="xclmgmt")
    user = function("0000:af:00.1", DeviceKind.FPGA, "0x10ee", "0x5005", driver="xocl", drm=Drm("card1", "renderD129"))
    device = only(collect(host, topology_of(management, user)))
    assert device.name == "fpga-0000-af-00-1"
    assert values(device)["vendor"] == "xilinx"
    assert values(device)["productName"] == "Alveo U250"
    assert device.capacity["logicCells"].value == "3780000"
    assert [node.path for node in device.nodes] == ["/dev/dri/card1", "/dev/dri/renderD129"]


def test_an_intel_card_offers_its_ports_and_not_its_management_engine(
    host: Host, write: Write, function: Make, topology_of: TopologyOf
) -> None:
    card = function("0000:b1:00.0", DeviceKind.FPGA, "0x8086", "0x0b2b", driver="dfl-pci")
    for name in ("dfl-fme.0", "dfl-port.0"):
        write(f"{PCI}/0000:b1:00.0/fpga_region/region0/{name}/dev", "242:0")
        write(f"{PCI}/0000:b1:00.0/fpga_region/region0/{name}/uevent", f"MAJOR=242\nDEVNAME={name}")
    device = only(collect(host, topology_of(card)))
    assert [(node.path, node.role) for node in device.nodes] == [("/dev/dfl-port.0", "vendor")]
    assert device.capacity["logicCells"].value == "2753000"


def test_an_accelerator_has_the_nodes_that_its_driver_made(
    host: Host, write: Write, function: Make, topology_of: TopologyOf
) -> None:
    facts = {"driver": "habanalabs", "accel": ("accel/accel0",)}
    gaudi = function("0000:19:00.0", DeviceKind.ACCELERATOR, "0x1da3", "0x1060", **facts)
    write("dev/accel/accel_controlD0", "")
    device = only(collect(host, topology_of(gaudi)))
    assert device.name == "accelerator-0000-19-00-0"
    assert values(device)["vendor"] == "habana"
    assert [node.path for node in device.nodes] == ["/dev/accel/accel0", "/dev/accel/accel_controlD0"]
    assert Path(device.nodes[0].host_path) == host.dev / "accel/accel0"


@pytest.mark.parametrize("recorded_host", ["hwloc-8ve"], indirect=True)
def test_a_recorded_host_with_eight_vector_engines(recorded_host: Host) -> None:
    inventory = collect(recorded_host, scan(recorded_host))
    engines = inventory.family("accelerator")
    assert len(engines) == 8
    # Its two ConnectX-4 were recorded without their interfaces.
    assert [one.code for one in inventory.excluded] == ["no-interface"] * 2
    assert len(inventory.family("nic")) == 2
    assert {node.path for device in engines for node in device.nodes} == {f"/dev/ve{number}" for number in range(8)}
    assert {values(device)["productName"] for device in engines} == {"Vector Engine 1.0"}
    switches = {device.pcie_switch for device in engines}
    assert len(switches) == 2


def test_functions_without_a_driver_are_reported_and_not_published(
    host: Host, function: Make, topology_of: TopologyOf
) -> None:
    unbound = function("0000:19:00.0", DeviceKind.GPU, "0x10de", "0x2330", driver=None)
    virtual = function("0000:1a:00.1", DeviceKind.GPU, "0x8086", "0x56c0", driver=None, physfn="0000:1a:00.0")
    inventory = collect(host, topology_of(unbound, virtual))
    assert inventory.devices == ()
    assert [one.code for one in inventory.excluded] == ["no-driver", "no-driver"]
    assert "no driver is bound to this gpu (0x10de:0x2330)" in inventory.excluded[0].reason


@pytest.mark.parametrize(
    ("kind", "vendor", "driver", "expected"),
    [
        (DeviceKind.GPU, "0x10de", "nvidia", "nvidia"),
        (DeviceKind.GPU, "0x1002", "amdgpu", "amd"),
        (DeviceKind.GPU, "0x8086", "xe", "intel"),
        (DeviceKind.GPU, "0x1ed5", "mtgpu", "plain"),
        (DeviceKind.GPU, "0x10de", "vfio-pci", "plain"),
        (DeviceKind.NIC, "0x15b3", "mlx5_vfio_pci", "plain"),
    ],
)
def test_each_function_has_its_back_end(
    function: Make, kind: DeviceKind, vendor: str, driver: str, expected: str
) -> None:
    assert backend_of(function("0000:01:00.0", kind, vendor, "0x0001", driver=driver)) == expected


def test_a_device_bound_to_vfio_is_not_a_gpu(host: Host, function: Make, topology_of: TopologyOf) -> None:
    gpu = function("0000:19:00.0", DeviceKind.GPU, "0x10de", "0x2330", driver="vfio-pci", iommu_group=42, vfio="vfio3")
    device = only(collect(host, topology_of(gpu)))
    assert (values(device)["type"], device.family) == ("vfio", "gpu")
    assert "uuid" not in values(device)
    assert [(node.path, node.role) for node in device.nodes] == [
        ("/dev/vfio/42", "vfio"),
        ("/dev/vfio/vfio", "vfio-control"),
    ]


def test_a_text_too_long_is_cut_between_characters_and_reported(
    host: Host, write: Write, function: Make, topology_of: TopologyOf
) -> None:
    gpu = function("0000:19:00.0", DeviceKind.GPU, "0x1002", "0x74a1", driver="amdgpu", drm=Drm("card0", "renderD128"))
    write(f"{PCI}/0000:19:00.0/product_name", "x" * 63 + "éé\x07")
    inventory = collect(host, topology_of(gpu))
    assert values(only(inventory))["productName"] == "x" * 63
    (problem,) = inventory.problems
    assert "productName is 67 bytes long and cut to 64" in problem.message


def test_an_unreadable_file_is_a_problem_with_a_hint(
    host: Host, write: Write, function: Make, topology_of: TopologyOf
) -> None:
    gpu = function("0000:19:00.0", DeviceKind.GPU, "0x1002", "0x74a1", driver="amdgpu", drm=Drm("card0", "renderD128"))
    write(f"{PCI}/0000:19:00.0/mem_info_vram_total", 1 << 30)
    (host.sysfs / "bus/pci/devices/0000:19:00.0/mem_info_vram_total").chmod(0)
    inventory = collect(host, topology_of(gpu))
    assert "memory" not in only(inventory).capacity
    assert any("as root" in str(problem) for problem in inventory.problems)


def test_a_file_that_answers_with_an_error_is_a_problem(
    host: Host, function: Make, topology_of: TopologyOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = function("0000:19:00.0", DeviceKind.GPU, "0x1002", "0x74a1", driver="amdgpu", drm=Drm("card0", "renderD128"))
    real = os.open

    def refuse(path: str | Path, *arguments: int) -> int:
        if str(path).endswith("mem_info_vram_total"):
            raise PermissionError(13, "Permission denied", str(path))
        if str(path).endswith("unique_id"):
            raise OSError(5, "Input/output error", str(path))
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    inventory = collect(host, topology_of(gpu))
    assert "memory" not in only(inventory).capacity
    assert {(Path(problem.where).name, problem.message) for problem in inventory.problems} == {
        ("mem_info_vram_total", "Permission denied"),
        ("unique_id", "Input/output error"),
    }


def test_pipes_loops_and_directories_in_the_place_of_files_do_no_harm(
    host: Host, function: Make, topology_of: TopologyOf
) -> None:
    gpu = function("0000:19:00.0", DeviceKind.GPU, "0x1002", "0x74a1", driver="amdgpu", drm=Drm("card0", "renderD128"))
    folder = host.sysfs / "bus/pci/devices/0000:19:00.0"
    os.mkfifo(folder / "unique_id")
    (folder / "product_name").mkdir()
    (folder / "mem_info_vram_total").symlink_to("mem_info_vram_total")
    device = only(collect(host, topology_of(gpu)))
    assert values(device)["productName"] == "AMD Instinct MI300X"
    assert device.capacity == {}


def test_a_back_end_that_fails_takes_no_other_devices_away(
    host: Host, function: Make, topology_of: TopologyOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dra_agent.inventory.amd import backend

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(backend.AmdBackend, "devices", broken)
    gpu = function("0000:19:00.0", DeviceKind.GPU, "0x1002", "0x74a1", driver="amdgpu", drm=Drm("card0", "renderD128"))
    nic = function("0000:3b:00.0", DeviceKind.NIC, "0x15b3", "0x1021", net=("ens1",))
    inventory = collect(host, topology_of(gpu, nic))
    assert [device.name for device in inventory.devices] == ["nic-0000-3b-00-0"]
    (problem,) = inventory.problems
    assert "RuntimeError: a defect" in problem.message


@pytest.mark.parametrize(
    ("layer", "gid"),
    [
        pytest.param("Ethernet", "fe80:0000:0000:0000:a288:c2ff:feb4:02fa", id="RoCE has no subnet manager"),
        pytest.param("InfiniBand", "0000:0000:0000:0000:0000:0000:0000:0000", id="no prefix yet"),
        pytest.param("InfiniBand", "fe80:0000", id="damaged"),
    ],
)
def test_a_port_without_a_subnet_prefix_has_none(
    layer: str, gid: str, host: Host, write: Write, function: Make, topology_of: TopologyOf
) -> None:
    nic = function("0000:3b:00.0", DeviceKind.NIC, "0x15b3", "0x1021", net=("ens1",), infiniband=("mlx5_3",))
    port = f"{PCI}/0000:3b:00.0/infiniband/mlx5_3/ports/1"
    for name, value in {"state": "4: ACTIVE", "link_layer": layer, "gids/0": gid}.items():
        write(f"{port}/{name}", value)
    assert not {"ibSubnetPrefix", "ibPortGUID"} & set(values(only(collect(host, topology_of(nic)))))
