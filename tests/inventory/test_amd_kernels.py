"""Partitions of an AMD GPU under each version of amdgpu: ids, names and files of the kernel differ, devices do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_agent.host import Host
from dra_agent.inventory.amd.kfd import gpu_nodes
from dra_agent.inventory.collector import Collector, collect
from dra_agent.inventory.model import Device, Inventory
from dra_agent.inventory.settings import InventorySettings
from dra_agent.topology import scan
from dra_simulate import build_machine
from dra_simulate.kernel import SimulatedKernel
from dra_simulate.roles.amd import LINUX_6_8, LINUX_6_14, LINUX_6_18, ROCM_7_1, AmdGpu, AmdgpuDriver
from inventory.test_amd_modes import DIVISIBLE, machine

FIRST = "0000:11:00.0"
DRIVERS = {"linux-6.8": LINUX_6_8, "linux-6.14": LINUX_6_14, "rocm-7.1": ROCM_7_1, "linux-6.18": LINUX_6_18}
EVERY_DRIVER = pytest.mark.parametrize("driver", DRIVERS.values(), ids=DRIVERS)
MEMORY_BYTES = 206_141_652_992


def host_in(mode: str, driver: AmdgpuDriver, root: Path) -> Host:
    """A host of two MI300X, the first in that mode."""
    described = machine(driver=driver)
    host = build_machine(described, root)
    if mode != "SPX":
        SimulatedKernel(root, described).write(f"bus/pci/devices/{FIRST}/current_compute_partition", mode)
    return host


def partitions(host: Host, settings: InventorySettings | None = None) -> list[Device]:
    found: Inventory = collect(host, scan(host), settings)
    assert found.problems == ()
    return [device for device in found.devices if device.pci_address == FIRST]


@EVERY_DRIVER
@pytest.mark.parametrize(("mode", "count"), [("DPX", 2), ("QPX", 4), ("CPX", 8)])
def test_each_partition_is_a_device_with_its_share(mode: str, count: int, driver: AmdgpuDriver, tmp_path: Path) -> None:
    devices = partitions(host_in(mode, driver, tmp_path / "host"))
    assert [device.name for device in devices] == [f"gpu-0000-11-00-0-{mode.lower()}-{n}" for n in range(count)]
    assert {device.capacity["computeUnits"].value for device in devices} == {str(304 // count)}
    assert {device.capacity["memory"].value for device in devices} == {f"{MEMORY_BYTES // count >> 20}Mi"}
    assert [[node.path for node in device.nodes] for device in devices] == [
        ["/dev/kfd", f"/dev/dri/card{n}", f"/dev/dri/renderD{128 + n}"] for n in range(count)
    ]


@EVERY_DRIVER
def test_a_gpu_in_one_piece_is_one_device(driver: AmdgpuDriver, tmp_path: Path) -> None:
    (device,) = partitions(host_in("SPX", driver, tmp_path / "host"))
    assert device.name == "gpu-0000-11-00-0"
    assert (device.capacity["computeUnits"].value, device.capacity["memory"].value) == ("304", "196592Mi")
    assert [node.path for node in device.nodes] == ["/dev/kfd", "/dev/dri/card0", "/dev/dri/renderD128"]


@EVERY_DRIVER
@pytest.mark.parametrize("mode", ["DPX", "CPX"])
def test_a_gpu_that_claims_divide_is_described_alike_in_every_mode(
    mode: str, driver: AmdgpuDriver, tmp_path: Path
) -> None:
    before = partitions(host_in("SPX", driver, tmp_path / "whole"), DIVISIBLE)
    assert len(before) == 15
    after = partitions(host_in(mode, driver, tmp_path / "divided"), DIVISIBLE)
    assert [device.name for device in after] == [device.name for device in before]
    assert [device.capacity for device in after] == [device.capacity for device in before]


def simulated(driver: AmdgpuDriver) -> AmdGpu:
    return next(role for function, role in machine(driver=driver).with_role(AmdGpu) if function.address == FIRST)


def kfd_uuids(host: Host) -> list[str]:
    """What ROCR_VISIBLE_DEVICES takes (RvdFilter in rocr-runtime): the hexadecimal digits of KFD's unique_id."""
    return [f"GPU-{node.unique_id:016x}" for node in gpu_nodes(host, [])[FIRST]]


@EVERY_DRIVER
def test_the_uuid_of_a_partition_selects_it_or_there_is_none(driver: AmdgpuDriver, tmp_path: Path) -> None:
    host = host_in("CPX", driver, tmp_path / "host")
    devices = partitions(host)
    uuids = [device.attributes["uuid"].value if "uuid" in device.attributes else None for device in devices]
    if driver.ids == "board":
        assert uuids == [None] * 8, "all eight have the same id"
    else:
        assert uuids == kfd_uuids(host) and len(set(uuids)) == 8
    board = f"GPU-{simulated(driver).unique_id:016x}"
    assert {device.attributes["parentUUID"].value for device in devices} == {board}


@EVERY_DRIVER
def test_the_uuid_of_a_gpu_is_the_one_that_selects_it(driver: AmdgpuDriver, tmp_path: Path) -> None:
    host = host_in("SPX", driver, tmp_path / "host")
    (device,) = partitions(host)
    assert [device.attributes["uuid"].value] == kfd_uuids(host)
    gpu = simulated(driver)
    assert kfd_uuids(host) == [f"GPU-{gpu.die_ids[0] if driver is ROCM_7_1 else gpu.unique_id:016x}"]


@EVERY_DRIVER
def test_a_gpu_that_claims_divide_keeps_its_uuid(driver: AmdgpuDriver, tmp_path: Path) -> None:
    described = machine(driver=driver)
    host = build_machine(described, tmp_path / "host")
    collector = Collector(host, DIVISIBLE)
    before = collector.collect(scan(host))
    whole = before.device("gpu-0000-11-00-0")
    assert whole is not None and [whole.attributes["uuid"].value] == kfd_uuids(host)
    parts = [device for device in before.devices if device.attributes["type"].value == "partition"]
    assert not any("uuid" in device.attributes for device in parts), "ids of partitions are known only in their mode"
    SimulatedKernel(tmp_path / "host", described).write(f"bus/pci/devices/{FIRST}/current_compute_partition", "CPX")
    assert [device.to_api() for device in collector.collect(scan(host)).devices] == [
        device.to_api() for device in before.devices
    ]
    collector.close()


def test_gpus_that_share_an_id_have_no_uuid(tmp_path: Path) -> None:
    host = build_machine(machine(driver=LINUX_6_8), tmp_path / "host")
    for number in (1, 2):
        properties = host.sysfs / "class/kfd/kfd/topology/nodes" / str(number) / "properties"
        rows = [line for line in properties.read_text().splitlines() if not line.startswith("unique_id")]
        properties.chmod(0o644)
        properties.write_text("\n".join([*rows, "unique_id 4711\n"]))
    assert ["uuid" in device.attributes for device in collect(host, scan(host)).devices] == [False, False]


def test_each_virtual_function_of_a_slot_is_a_gpu(tmp_path: Path) -> None:
    host = Host(tmp_path / "sys", tmp_path / "dev", tmp_path / "proc", None)
    for function in (0, 1):
        folder = host.sysfs / f"bus/pci/devices/0000:02:00.{function}"
        folder.mkdir(parents=True)
        (folder / "current_compute_partition").write_text("SPX\n")
        node = host.sysfs / f"class/kfd/kfd/topology/nodes/{function + 1}"
        node.mkdir(parents=True)
        rows = f"simd_count 1216\nsimd_per_cu 4\nlocation_id {0x200 + function}\ndrm_render_minor {128 + function}\n"
        (node / "properties").write_text(rows)
    nodes = gpu_nodes(host, [])
    assert {address: [node.render_minor for node in of_gpu] for address, of_gpu in nodes.items()} == {
        "0000:02:00.0": [128],
        "0000:02:00.1": [129],
    }
