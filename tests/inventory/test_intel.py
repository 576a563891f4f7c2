from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dra_agent.host import Host
from dra_agent.inventory.api import Capacity
from dra_agent.inventory.builder import pci_files
from dra_agent.inventory.collector import collect
from dra_agent.inventory.intel.backend import IntelBackend, VirtualFunctions
from dra_agent.inventory.model import Device
from dra_agent.inventory.rules import PartitionRules
from dra_agent.inventory.settings import InventorySettings, PartitionRule
from dra_agent.slices import desired_slices
from dra_agent.topology import DeviceKind, Drm, PciFunction, Sriov, scan
from dra_simulate import build
from dra_simulate.kernel import SimulatedKernel

Write = Callable[[str, object], None]
Function = Callable[..., PciFunction]
PCI = "sys/bus/pci/devices"


@pytest.fixture(scope="module")
def b60(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return build("arc-b60", tmp_path_factory.mktemp("b60") / "host")


def memory_of(device: Device) -> str | None:
    return device.capacity["memory"].value if "memory" in device.capacity else None


def test_memory_is_reported_by_the_driver_and_never_guessed(
    host: Host, write: Write, function: Callable[..., PciFunction]
) -> None:
    # Intel's own builds of the drivers have files that mainline's have not.
    xe = function("0000:03:00.0", DeviceKind.GPU, "0x8086", "0xe20d", driver="xe", drm=Drm("card0", "renderD128"))
    i915 = function("0000:04:00.0", DeviceKind.GPU, "0x8086", "0x56a0", driver="i915", drm=Drm("card1", "renderD129"))
    flex = function("0000:05:00.0", DeviceKind.GPU, "0x8086", "0x56c0", driver="i915", drm=Drm("card2", "renderD130"))
    built_in = function(
        "0000:00:02.0", DeviceKind.GPU, "0x8086", "0x46a6", driver="i915", drm=Drm("card3", "renderD131")
    )
    write(f"{PCI}/0000:03:00.0/tile0/physical_vram_size_bytes", f"{12 << 30:#x}")
    write(f"{PCI}/0000:04:00.0/drm/card1/lmem_total_bytes", 16 << 30)
    devices = IntelBackend(host).devices([built_in, xe, i915, flex], [])
    assert [memory_of(device) for device in devices] == [None, "12Gi", "16Gi", "16Gi"]
    assert [node.path for node in devices[1].nodes] == ["/dev/dri/card0", "/dev/dri/renderD128"]
    assert devices[3].attributes["productName"].value == "Intel Data Center GPU Flex 170"
    assert devices[3].attributes["brand"].value == "Flex"
    assert "productName" not in devices[0].attributes


@pytest.mark.parametrize(
    ("address", "device", "parents", "expected"),
    [
        ("0000:00:02.0", "0x46a6", (), True),
        # A virtual function of the same chip.
        ("0000:00:02.1", "0xb080", (), True),
        ("0000:03:00.0", "0xe20b", ("0000:00:01.0",), False),
        # A card that a virtual machine has at the address of a processor's GPU, without memory in sysfs.
        ("0000:00:02.0", "0x5693", (), False),
        # A processor's GPU in a virtual machine, or a card that is newer than the table: not known.
        ("0000:01:00.0", "0x46a6", ("0000:00:1c.0",), None),
        ("0000:00:05.0", "0x46a6", (), None),
    ],
)
def test_graphics_of_a_processor_are_distinguished_from_cards(
    address: str, device: str, parents: tuple[str, ...], expected: bool | None, host: Host, function: Function
) -> None:
    gpu = function(address, DeviceKind.GPU, "0x8086", device, driver="xe", parents=parents)
    (found,) = IntelBackend(host).devices([gpu], [])
    attribute = found.attributes.get("integrated")
    assert (attribute and attribute.value) is expected


def test_a_gpu_that_reports_its_own_memory_is_a_card(host: Host, write: Write, function: Function) -> None:
    gpu = function("0000:00:02.0", DeviceKind.GPU, "0x8086", "0xffff", driver="xe")
    write(f"{PCI}/0000:00:02.0/tile0/physical_vram_size_bytes", f"{12 << 30:#x}")
    (found,) = IntelBackend(host).devices([gpu], [])
    assert found.attributes["integrated"].value is False


@pytest.mark.parametrize(
    ("device", "capacity", "expected"),
    [
        # Mainline xe has no file with the size; the controller dmem has it, and the regions of two tiles.
        ("0xe223", "drm/0000:03:00.0/vram0 34242297856\ndrm/0000:03:00.0/stolen 67108864", 34242297856),
        ("0x0bd5", "drm/0000:03:00.0/vram0 68702699520\ndrm/0000:03:00.0/vram1 68702699520", 137405399040),
        ("0xe20d", "drm/0000:83:00.0/vram0 34242297856", None),
        # Without the controller: boards of one size from the table, others unknown.
        ("0xe20b", "", 12 << 30),
        ("0xe223", "", 32 << 30),
        ("0x56a0", "", None),
        ("0xe20d", "", None),
    ],
)
def test_memory_under_mainline_xe(
    device: str, capacity: str, expected: int | None, host: Host, write: Write, function: Callable[..., PciFunction]
) -> None:
    if capacity:
        write("sys/fs/cgroup/dmem.capacity", capacity)
    xe = function("0000:03:00.0", DeviceKind.GPU, "0x8086", device, driver="xe", drm=Drm("card0", "renderD128"))
    (found,) = IntelBackend(host).devices([xe], [])
    assert memory_of(found) == (None if expected is None else Capacity.of_bytes(expected).value)


def test_both_generations_of_kernels_are_simulated(b60: Host, tmp_path: Path) -> None:
    recent, older = b60, build("mixed", tmp_path / "host")
    for host in (recent, older):
        assert not list((host.sysfs / "devices").rglob("physical_vram_size_bytes")), "mainline has no such file"
    regions = dict(line.split() for line in (recent.sysfs / "fs/cgroup/dmem.capacity").read_text().splitlines())
    assert regions["drm/0000:03:00.0/vram0"] == str(24480 << 20)
    assert regions["drm/0000:05:00.1/vram0"] == str(QUOTA_BYTES)
    assert not (older.sysfs / "fs/cgroup").exists()
    whole = collect(recent, scan(recent)).device("gpu-0000-03-00-0")
    other = collect(older, scan(older)).device("gpu-0000-1c-00-0")
    assert whole is not None and other is not None
    assert (memory_of(whole), memory_of(other)) == ("24480Mi", "24Gi")


def test_a_divided_gpu_is_published_as_its_virtual_functions(
    host: Host, write: Write, function: Callable[..., PciFunction]
) -> None:
    virtual = ("0000:03:00.1", "0000:03:00.2")
    physical = function(
        "0000:03:00.0", DeviceKind.GPU, "0x8086", "0x56c0", driver="xe", sriov=Sriov(31, 2), virtfns=virtual
    )
    ones = [function(a, DeviceKind.GPU, "0x8086", "0x56c0", driver="xe", physfn="0000:03:00.0") for a in virtual]
    write(f"{PCI}/0000:03:00.0/sriov_admin/vf2/profile/vram_quota", 4 << 30)
    first, second = IntelBackend(host).devices([physical, *ones], [])
    assert [first.name, second.name] == ["gpu-0000-03-00-1", "gpu-0000-03-00-2"]
    for device in (first, second):
        assert device.attributes["type"].value == "vf"
        assert device.attributes["memoryEnforcement"].value == "vf"
        assert device.identity["parent"] == "gpu-0000-03-00-0"
    assert "memory" not in first.capacity, "the board's memory is not the virtual function's"
    assert second.capacity["memory"].value == "4Gi"


def test_a_quota_that_the_driver_provisions_during_a_scan_is_in_no_part_of_it(
    host: Host, write: Write, function: Callable[..., PciFunction]
) -> None:
    """A device that consumes a counter which its counter set does not have cannot be allocated."""
    virtual = ("0000:03:00.1", "0000:03:00.2")
    physical = function("0000:03:00.0", DeviceKind.GPU, "0x8086", "0x56c0", sriov=Sriov(31, 2), virtfns=virtual)
    quota = f"{PCI}/0000:03:00.0/sriov_admin/vf2/profile/vram_quota"
    write(quota, 0)
    functions = VirtualFunctions(physical, pci_files(host, physical, []), 16 << 30)
    counters = functions.counters("gpu").counters
    write(quota, 4 << 30)
    for consumption in (functions.part("gpu", virtual[1]), functions.whole("gpu")):
        assert consumption.counters.keys() <= counters.keys()
    assert functions.remaining == 16 << 30


def test_a_gpu_that_could_be_divided_and_is_not_stays_whole(host: Host, function: Callable[..., PciFunction]) -> None:
    physical = function("0000:03:00.0", DeviceKind.GPU, "0x8086", "0x56c0", driver="xe", sriov=Sriov(31, 0))
    (device,) = IntelBackend(host).devices([physical], [])
    assert device.attributes["type"].value == "gpu"
    assert "memoryEnforcement" not in device.attributes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[low] normal high", "low"),
        ("low [normal] high", "normal"),
        ("low normal [high]", "high"),
        # Virtual functions cannot have priority "high".
        ("[low] normal", "low"),
        ("normal", "normal"),
        ("low normal high", None),
    ],
)
def test_the_priority_is_the_one_in_brackets(
    text: str, expected: str | None, host: Host, write: Write, function: Callable[..., PciFunction]
) -> None:
    physical = function(
        "0000:03:00.0", DeviceKind.GPU, "0x8086", "0xe212", driver="xe", sriov=Sriov(12, 1), virtfns=("0000:03:00.1",)
    )
    virtual = function("0000:03:00.1", DeviceKind.GPU, "0x8086", "0xe212", driver="xe", physfn="0000:03:00.0")
    write(f"{PCI}/0000:03:00.0/sriov_admin/vf1/profile/sched_priority", text)
    (part,) = IntelBackend(host).devices([physical, virtual], [])
    priority = part.attributes.get("schedPriority")
    assert (priority.value if priority is not None else None) == expected


def test_provisioning_files_are_those_of_mainline_xe(b60: Host) -> None:
    admin = b60.sysfs / "bus/pci/devices/0000:05:00.0/sriov_admin"
    assert {path.name for path in admin.iterdir()} == {"pf", *(f"vf{number}" for number in range(1, 13))}
    assert (admin / "pf/profile/sched_priority").read_text() == "[low] normal high\n"
    assert (admin / "vf1/profile/sched_priority").read_text() == "[low] normal\n"
    assert (admin / "vf12/profile/vram_quota").read_text() == "0\n"
    assert not (admin / "pf/profile/vram_quota").exists()
    linked = [path.parent.name for path in admin.glob("*/device")]
    assert sorted(linked) == ["pf", "vf1", "vf2", "vf3", "vf4"]
    assert (admin / "vf2/device").resolve() == (b60.sysfs / "bus/pci/devices/0000:05:00.2").resolve()


QUOTA_BYTES = (22 << 30) // 4
SHARED = InventorySettings(
    partition=(PartitionRule('device.attributes["dra-agent.internal"].vendor == "intel"', "sriov"),)
)
WHOLE = "gpu-0000-05-00-0"


def test_a_recent_kernel_reports_the_quota_of_a_virtual_function(b60: Host) -> None:
    inventory = collect(b60, scan(b60))
    assert [device.name for device in inventory.family("gpu")] == [
        "gpu-0000-03-00-0",
        *(f"gpu-0000-05-00-{number}" for number in range(1, 5)),
    ]
    part = inventory.device("gpu-0000-05-00-2")
    assert part is not None
    values = {name: value.value for name, value in part.attributes.items()}
    assert (values["type"], values["memoryEnforcement"]) == ("vf", "vf")
    # Defaults of the driver: unlimited.
    assert (values["execQuantumMs"], values["preemptTimeoutUs"], values["schedPriority"]) == (0, 0, "low")
    assert part.capacity["memory"].value == Capacity.of_bytes(QUOTA_BYTES).value
    assert part.consumes_counters == () and inventory.counter_sets == {}


def test_the_whole_of_a_divided_gpu_is_offered_where_the_operator_wants_it(b60: Host) -> None:
    inventory = collect(b60, scan(b60), SHARED)
    whole = inventory.device(WHOLE)
    assert whole is not None and whole.capacity["memory"].value == "1952Mi", "what no virtual function has"
    assert whole.attributes["sriovVfs"].value == 4
    (counters,) = inventory.counter_sets["gpu"]
    amounts = {name: int(counter.value) for name, counter in counters.counters.items()}
    assert amounts == {"virtual-functions": 4, "memory": 24480 << 20}
    parts = [device for device in inventory.family("gpu") if device.identity.get("parent") == WHOLE]
    assert len(parts) == 4
    for name, total in amounts.items():
        taken = [int(part.consumes_counters[0].counters[name].value) for part in parts]
        assert sum(taken) <= total, "all of them fit together"
        assert int(whole.consumes_counters[0].counters[name].value) + min(taken) > total, "none with the whole"
    undivided = inventory.device("gpu-0000-03-00-0")
    assert undivided is not None and undivided.consumes_counters == ()
    assert desired_slices(inventory, node="node-a", driver="dra-agent.internal").problems == []


def test_the_whole_is_not_published_while_a_virtual_function_is_in_use(tmp_path: Path) -> None:
    host = build("arc-b60", tmp_path / "host")
    kernel = SimulatedKernel(tmp_path / "host")
    function = "0000:05:00.4"
    kernel.write(f"bus/pci/devices/{function}/driver_override", "vfio-pci")
    kernel.write(f"bus/pci/devices/{function}/driver/unbind", function)
    kernel.write("bus/pci/drivers_probe", function)
    inventory = collect(host, scan(host), SHARED)
    assert inventory.device(WHOLE) is None
    assert [counters.name for counters in inventory.counter_sets["gpu"]] == [WHOLE]
    passed = inventory.device("gpu-0000-05-00-4")
    assert passed is not None and passed.attributes["type"].value == "vfio"
    assert passed.identity["parent"] == WHOLE


def test_an_older_kernel_counts_functions_only(host: Host, function: Callable[..., PciFunction]) -> None:
    virtual = ("0000:03:00.1", "0000:03:00.2")
    physical = function(
        "0000:03:00.0", DeviceKind.GPU, "0x8086", "0x56c0", driver="i915", sriov=Sriov(31, 2), virtfns=virtual
    )
    ones = [function(a, DeviceKind.GPU, "0x8086", "0x56c0", driver="i915", physfn="0000:03:00.0") for a in virtual]
    backend = IntelBackend(host)
    backend.partition_by(PartitionRules([PartitionRule("true", "sriov")], "dra-agent.internal"))
    whole, *parts = backend.devices([physical, *ones], [])
    (counters,) = backend.counter_sets()
    assert set(counters.counters) == {"virtual-functions"}
    assert [part.consumes_counters[0].counters["virtual-functions"].value for part in parts] == ["1", "1"]
    assert whole.consumes_counters[0].counters["virtual-functions"].value == "2"
    assert all("execQuantumMs" not in part.attributes for part in parts)
