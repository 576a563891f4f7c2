"""DRM devices of partitionable AMD GPUs: eight of each GPU in every mode, most of them idle."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_agent.inventory.collector import collect
from dra_agent.topology import scan
from dra_simulate import build_machine, inject
from dra_simulate.kernel import SimulatedKernel
from dra_simulate.roles.amd import LINUX_6_8, LINUX_6_18, AmdgpuDriver
from inventory.test_amd_modes import machine

SECOND = "0000:12:00.0"


@pytest.mark.parametrize(("driver", "name"), [(LINUX_6_8, "amdgpu_xcp.{}"), (LINUX_6_18, "amdgpu_xcp_{}")])
@pytest.mark.parametrize("mode", ["SPX", "DPX", "CPX"])
def test_a_gpu_has_eight_nodes_in_every_mode(mode: str, driver: AmdgpuDriver, name: str, tmp_path: Path) -> None:
    described = machine(driver=driver)
    host = build_machine(described, tmp_path / "host")
    if mode != "SPX":
        SimulatedKernel(tmp_path / "host", described).write(f"bus/pci/devices/{SECOND}/current_compute_partition", mode)
    nodes = {node.name for node in (host.dev / "dri").iterdir() if node.name.startswith("renderD")}
    assert nodes == {f"renderD{minor}" for minor in range(128, 144)}
    # A real host: amdgpu_xcp.29 has renderD162, the third node of its fifth GPU (ROCm/k8s-device-plugin#157).
    platform = host.sysfs / "devices/platform"
    assert {folder.name for folder in platform.iterdir()} == {name.format(number) for number in range(14)}
    assert (platform / name.format(8) / "drm/renderD138").is_dir()

    found = collect(host, scan(host))
    given = [node.path for device in found.devices for node in device.nodes if node.role == "render"]
    count = {"SPX": 1, "DPX": 2, "CPX": 8}[mode]
    assert given == ["/dev/dri/renderD128", *(f"/dev/dri/renderD{136 + part}" for part in range(count))]


def test_a_gpu_that_leaves_takes_its_platform_devices_along(tmp_path: Path) -> None:

    described = machine()
    host = build_machine(described, tmp_path / "host")
    inject.unplug(tmp_path / "host", SECOND, described)
    assert len(list((host.sysfs / "devices/platform").iterdir())) == 7
    assert not host.dev_path("/dev/dri/renderD137").exists()
    nodes = host.sysfs / "class/kfd/kfd/topology/nodes"
    assert sorted(node.name for node in nodes.iterdir()) == ["0", "1"]
    inject.replug(tmp_path / "host", SECOND, described)
    assert len(list((host.sysfs / "devices/platform").iterdir())) == 14
    assert (nodes.parent / "generation_id").read_text() == "5\n", "one node removed, one added"
