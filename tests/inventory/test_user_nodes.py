"""Which device nodes a container gets of functions whose drivers make their own: FPGAs, accelerators, GPUs and NICs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dra_agent.deadline import Deadline
from dra_agent.doctor.record.tree import TreeReader
from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Device, Inventory
from dra_agent.topology import DeviceKind, PciFunction, Topology, scan
from dra_agent.topology.model import Drm, Sriov
from dra_simulate import build_machine
from dra_simulate.machine import Function, HostBridge, Machine, NumaNode
from eventually import DEADLINE_S
from rare_parts import hailo_4_22, hygon, memryx, metax, moore_threads, omni_path, wifi

Write = Callable[[str, object], None]
Make = Callable[..., PciFunction]
TopologyOf = Callable[..., Topology]
GPU, NIC, FPGA, ACCELERATOR = DeviceKind.GPU, DeviceKind.NIC, DeviceKind.FPGA, DeviceKind.ACCELERATOR
FIRST, SECOND = "0000:00:1e.0", "0000:00:1f.0"


def published(inventory: Inventory) -> dict[str, list[str]]:
    """The nodes of each device, by address."""
    return {device.pci_address: [node.path for node in device.nodes] for device in inventory.devices}


def codes(inventory: Inventory) -> dict[str, str]:
    return {one.pci_address or "": one.code for one in inventory.excluded}


@pytest.fixture
def node(host: Host, write: Write) -> Callable[..., None]:
    """Make a node in a subsystem: below a function, or with address None as a virtual device."""

    def make(address: str | None, subsystem: str, name: str, devname: str | None = None) -> None:
        parent = f"bus/pci/devices/{address}" if address is not None else "devices/virtual"
        folder = f"{parent}/{subsystem}/{name}"
        write(f"sys/{folder}/dev", "240:0")
        write(f"sys/{folder}/uevent", f"MAJOR=240\nMINOR=0\nDEVNAME={devname or name}")
        write(f"dev/{devname or name}", "")
        (host.sysfs / folder / "subsystem").symlink_to(host.sysfs / "class" / subsystem)
        linked = host.sysfs / "class" / subsystem
        linked.mkdir(parents=True, exist_ok=True)
        (linked / name).symlink_to(host.sysfs / folder)

    return make


def test_an_fpga_with_its_management_engine_only_gives_nothing(
    host: Host, node: Callable[..., None], function: Make, topology_of: TopologyOf
) -> None:
    """After the ports were released to virtual functions, dfl-pci has the engine alone."""
    fpga = function(FIRST, FPGA, "0x8086", "0x0b30", driver="dfl-pci")
    node(FIRST, "fpga_region", "dfl-fme.0")
    found = collect(host, topology_of(fpga))
    assert (published(found), codes(found)) == ({}, {FIRST: "no-node"})
    node(FIRST, "fpga_region", "dfl-port.0")
    assert published(collect(host, topology_of(fpga))) == {FIRST: ["/dev/dfl-port.0"]}


def test_released_ports_are_claimed_as_virtual_functions(
    host: Host, node: Callable[..., None], function: Make, topology_of: TopologyOf
) -> None:
    fpga = function(FIRST, FPGA, "0x8086", "0x0b30", driver="dfl-pci", sriov=Sriov(1, 1))
    node(FIRST, "fpga_region", "dfl-fme.0")
    assert codes(collect(host, topology_of(fpga))) == {FIRST: "physical-function"}


@pytest.mark.parametrize(
    ("subsystem", "name", "devname"),
    [
        ("sound", "pcmC0D0p", "snd/pcmC0D0p"),
        ("i2c-dev", "i2c-3", None),
        ("block", "xvda", None),
        ("ptp", "ptp0", None),
        ("mtd", "mtd0", None),
        ("gpio", "gpiochip0", None),
        ("tty", "ttyS4", None),
        ("rtc", "rtc1", None),
        ("watchdog", "watchdog0", None),
        ("uio", "uio0", None),
        ("vfio-dev", "vfio0", "vfio/devices/vfio0"),
        ("infiniband_mad", "umad0", "infiniband/umad0"),
        ("drm_dp_aux_dev", "drm_dp_aux0", None),
        ("graphics", "fb0", None),
        ("nvme", "nvme0", None),
    ],
)
@pytest.mark.parametrize("kind", [GPU, FPGA, ACCELERATOR])
def test_nodes_of_other_subsystems_are_not_given(
    kind: DeviceKind,
    subsystem: str,
    name: str,
    devname: str | None,
    host: Host,
    node: Callable[..., None],
    function: Make,
    topology_of: TopologyOf,
) -> None:
    unknown = function(FIRST, kind, "0xabcd", "0x0001", driver="new")
    node(FIRST, subsystem, name, devname)
    found = collect(host, topology_of(unknown))
    assert (published(found), codes(found)) == ({}, {FIRST: "no-node"})
    node(FIRST, "newclass", "new0")
    assert published(collect(host, topology_of(unknown))) == {FIRST: ["/dev/new0"]}


def test_a_part_of_a_block_device_is_not_given(
    host: Host, write: Write, node: Callable[..., None], function: Make, topology_of: TopologyOf
) -> None:
    """A partition is a folder in that of its disk, and its `subsystem` may not be readable."""
    unknown = function(FIRST, ACCELERATOR, "0xabcd", "0x0001", driver="new")
    node(FIRST, "block", "xvda")
    write(f"sys/bus/pci/devices/{FIRST}/block/xvda/xvda1/dev", "202:1")
    write(f"sys/bus/pci/devices/{FIRST}/block/xvda/xvda1/uevent", "DEVNAME=xvda1")
    assert codes(collect(host, topology_of(unknown))) == {FIRST: "no-node"}


def test_a_gpu_of_a_vendor_without_a_back_end_has_its_own_nodes(
    host: Host, write: Write, node: Callable[..., None], function: Make, topology_of: TopologyOf
) -> None:
    gpu = function(FIRST, GPU, "0x0731", "0x9100", driver="jmgpu", drm=Drm("card1", "renderD129"))
    write("dev/dri/card1", "")
    write("dev/dri/renderD129", "")
    node(FIRST, "jmgpu", "jmgpu0")
    assert published(collect(host, topology_of(gpu))) == {
        FIRST: ["/dev/dri/card1", "/dev/dri/renderD129", "/dev/jmgpu0"]
    }
    without_render = function(FIRST, GPU, "0x0731", "0x9100", driver="jmgpu", drm=Drm("card1", None))
    assert published(collect(host, topology_of(without_render))) == {FIRST: ["/dev/dri/card1", "/dev/jmgpu0"]}


@pytest.mark.parametrize(
    ("vendor", "device", "kind", "required", "optional"),
    [("0x9999", "0x4001", GPU, "mxcd", None), ("0x1d94", "0x62b7", ACCELERATOR, "kfd", "mkfd")],
    ids=["MetaX", "Hygon"],
)
def test_nodes_that_all_devices_of_a_vendor_share_are_given(
    vendor: str,
    device: str,
    kind: DeviceKind,
    required: str,
    optional: str | None,
    host: Host,
    write: Write,
    function: Make,
    topology_of: TopologyOf,
) -> None:
    gpu = function(FIRST, kind, vendor, device, drm=Drm("card1", "renderD129"))
    found = collect(host, topology_of(gpu))
    assert (published(found), codes(found)) == ({}, {FIRST: "incomplete-nodes"})
    write(f"dev/{required}", "")
    own = ["/dev/dri/card1", "/dev/dri/renderD129"]
    assert published(collect(host, topology_of(gpu))) == {FIRST: [*own, f"/dev/{required}"]}
    if optional is not None:
        write(f"dev/{optional}", "")
        (one,) = collect(host, topology_of(gpu)).devices
        assert [node.path for node in one.nodes] == [*own, f"/dev/{required}", f"/dev/{optional}"]
        assert {node.role for node in one.nodes if "dri" not in node.path} == {"control"}


def test_a_moore_threads_gpu_needs_its_own_node(
    host: Host, write: Write, node: Callable[..., None], function: Make, topology_of: TopologyOf
) -> None:
    gpu = function(FIRST, GPU, "0x1ed5", "0x0222", driver="mtgpu", drm=Drm("card1", "renderD129"))
    assert codes(collect(host, topology_of(gpu))) == {FIRST: "incomplete-nodes"}
    write("dev/mtgpu.0", "")
    assert codes(collect(host, topology_of(gpu))) == {FIRST: "node-unknown"}
    node(FIRST, "mtgpu", "mtgpu.0")
    assert published(collect(host, topology_of(gpu))) == {
        FIRST: ["/dev/dri/card1", "/dev/dri/renderD129", "/dev/mtgpu.0"]
    }


@pytest.mark.parametrize("class_", ["hailo_chardev", "hailo1x"])
def test_a_hailo_is_known_by_its_board_location(
    class_: str, host: Host, write: Write, node: Callable[..., None], function: Make, topology_of: TopologyOf
) -> None:
    """Up to 4.22 its nodes have no parent."""
    two = [function(one, ACCELERATOR, "0x1e60", "0x2864", driver="hailo") for one in (FIRST, SECOND)]
    for number, address in enumerate((SECOND, FIRST)):
        node(None, class_, f"hailo{number}")
        write(f"sys/devices/virtual/{class_}/hailo{number}/board_location", address)
    assert published(collect(host, topology_of(*two))) == {FIRST: ["/dev/hailo1"], SECOND: ["/dev/hailo0"]}
    (host.sysfs / f"devices/virtual/{class_}/hailo0/board_location").unlink()
    found = collect(host, topology_of(*two))
    assert (published(found), codes(found)) == ({FIRST: ["/dev/hailo1"]}, {SECOND: "node-unknown"})


@pytest.mark.parametrize(
    "part",
    [
        *(partial(make, number=1) for make in (hailo_4_22, memryx)),
        *(partial(make, card=1) for make in (hygon, metax, moore_threads)),
        partial(omni_path, number=1, machine="one"),
        partial(wifi, name="wlan0", index=2, machine="one"),
    ],
    ids=lambda part: part.func.__name__,
)
def test_a_recording_has_what_decides(part: Callable[..., Function], tmp_path: Path) -> None:
    machine = Machine(
        "one",
        "one device",
        nodes=(NumaNode("0-3", 64 << 30, (10,)),),
        bridges=(HostBridge("pci0000:00", 0, (part("0000:00:03.0"),)),),
    )
    host = build_machine(machine, tmp_path / "host")
    whole = collect(host, scan(host))
    reader = TreeReader(host, Deadline.of(DEADLINE_S))
    reader.collect()
    for path in sorted(host.sysfs.parent.rglob("*"), reverse=True):
        if (
            not (path.is_dir() and not path.is_symlink())
            and str(path.relative_to(host.sysfs.parent)) not in reader.entries
        ):
            path.unlink()
    rest = collect(host, scan(host))
    assert (published(rest), codes(rest)) == (published(whole), codes(whole)) != ({}, {})


@pytest.mark.parametrize(
    ("vendor", "driver", "class_", "name"),
    [
        ("0x1fe9", "memx_pcie_ai_chip", "memx_cdev", "memx0"),
        ("0x1ff4", "dx_dma_pcie", "dxrt", "dxrt0"),
        ("0x1da3", "habanalabs", "habanalabs", "hl0"),
    ],
)
def test_a_node_that_sys_relates_to_no_function_is_unknown_and_not_missing(
    vendor: str,
    driver: str,
    class_: str,
    name: str,
    host: Host,
    node: Callable[..., None],
    function: Make,
    topology_of: TopologyOf,
) -> None:
    one = function(FIRST, ACCELERATOR, vendor, "0x0001", driver=driver)
    assert codes(collect(host, topology_of(one))) == {FIRST: "no-node"}
    node(None, class_, name)
    (excluded,) = collect(host, topology_of(one)).excluded
    assert excluded.code == "node-unknown" and f"/dev/{name}" in excluded.reason
    assert "dmesg" not in excluded.hint


def test_a_slingshot_nic_has_its_cxi_node(
    host: Host, write: Write, node: Callable[..., None], function: Make, topology_of: TopologyOf
) -> None:
    nic = function(FIRST, NIC, "0x17db", "0x0501", driver="cxi_ss1", net=("hsn0",))
    write(f"sys/bus/pci/devices/{FIRST}/net/hsn0/type", 1)
    node(FIRST, "ptp", "ptp0")
    node(FIRST, "cxi_user", "cxi0")
    (device,) = collect(host, topology_of(nic)).devices
    assert _own(device) == ["/dev/cxi0"]


def test_an_omni_path_nic_has_the_node_of_its_unit(
    host: Host, write: Write, node: Callable[..., None], function: Make, topology_of: TopologyOf
) -> None:
    """hfi1 gives the node no parent; it has the name that the RDMA device has unless a rule of udev renames that."""
    nic = function(FIRST, NIC, "0x8086", "0x24f0", driver="hfi1", infiniband=("hfi1_1",), uverbs=("uverbs0",))
    node(None, "hfi1_user", "hfi1_0")
    (device,) = collect(host, topology_of(nic)).devices
    assert _own(device) == []
    node(None, "hfi1_user", "hfi1_1")
    (device,) = collect(host, topology_of(nic)).devices
    assert _own(device) == ["/dev/hfi1_1"]


def _own(device: Device) -> list[str]:
    return [node.path for node in device.nodes if node.role == "vendor"]


def test_a_wireless_adapter_is_excluded(host: Host, write: Write, function: Make, topology_of: TopologyOf) -> None:
    wifi = function(FIRST, NIC, "0x8086", "0x2725", class_="0x028000", driver="iwlwifi", net=("wlan0",))
    write(f"sys/bus/pci/devices/{FIRST}/net/wlan0/type", 1)
    assert codes(collect(host, topology_of(wifi))) == {}
    phy = Path(host.sysfs) / f"bus/pci/devices/{FIRST}/ieee80211/phy0"
    phy.mkdir(parents=True)
    (host.sysfs / f"bus/pci/devices/{FIRST}/net/wlan0/phy80211").symlink_to(phy)
    assert codes(collect(host, topology_of(wifi))) == {FIRST: "wireless"}


def test_a_gpu_whose_sound_function_the_host_has_is_not_given_to_a_virtual_machine(
    host: Host, function: Make, topology_of: TopologyOf
) -> None:
    gpu = function(FIRST, GPU, "0x10de", "0x2204", driver="vfio-pci", iommu_group=7)
    other = {"kind": DeviceKind.OTHER, "vendor": "0x10de", "device": "0x1aef", "iommu_group": 7}
    sound = function("0000:00:1e.1", class_="0x040300", driver="snd_hda_intel", **other)
    port = function("0000:00:01.0", class_="0x060400", driver="pcieport", **other)
    found = collect(host, topology_of(port, gpu, sound))
    (excluded,) = found.excluded
    assert excluded.code == "iommu-group" and "0000:00:1e.1 (snd_hda_intel)" in excluded.reason
    assert "0000:00:01.0" not in excluded.reason
    for driver in (None, "vfio-pci", "pci-stub"):
        free = function("0000:00:1e.1", class_="0x040300", driver=driver, **other)
        assert [one.pci_address for one in collect(host, topology_of(port, gpu, free)).devices] == [FIRST]
    elsewhere = function("0000:00:1e.1", class_="0x040300", driver="snd_hda_intel", **{**other, "iommu_group": 8})
    assert [one.pci_address for one in collect(host, topology_of(port, gpu, elsewhere)).devices] == [FIRST]
