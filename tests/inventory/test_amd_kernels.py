"""Partitions of an AMD GPU under each version of amdgpu: ids, names and files of the kernel differ, devices do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_agent.host import Host
from dra_agent.inventory import Device, Inventory, InventorySettings, collect
from dra_agent.simulate import build_machine
from dra_agent.simulate.kernel import SimulatedKernel
from dra_agent.simulate.roles.amd import LINUX_6_8, LINUX_6_14, LINUX_6_18, ROCM_7_1, AmdgpuDriver
from dra_agent.topology import scan
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
