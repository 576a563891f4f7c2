"""GPUs and accelerators that are no PCI functions: one exclusion each, and none on other hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dra_agent.deadline import Deadline
from dra_agent.doctor.record.tree import TreeReader
from dra_agent.host import Host
from dra_agent.inventory.collector import collect
from dra_agent.inventory.model import Inventory
from dra_agent.topology import scan
from dra_simulate import build, build_machine
from dra_simulate.machine import HostBridge, Machine, NumaNode
from dra_simulate.roles.tegra import TegraGpu
from eventually import DEADLINE_S

ORIN = TegraGpu("17000000.gpu", ("nvidia,p3737-0000+p3701-0000", "nvidia,tegra234"))
WITH_MODULE = replace(ORIN, driver_version="540.4.0")


def jetson(folder: Path, soc: TegraGpu = WITH_MODULE) -> Host:
    machine = Machine(
        "jetson",
        "one root without functions",
        nodes=(NumaNode("0-7", 64 << 30, (10,)),),
        bridges=(HostBridge("pci0000:00", 0, ()),),
        platform=(soc,),
        iommu=False,
    )
    return build_machine(machine, folder / "host")


def inventory(host: Host) -> Inventory:
    return collect(host, scan(host))


@pytest.mark.parametrize("soc", [ORIN, WITH_MODULE], ids=["nvgpu", "module"])
def test_the_gpu_of_a_tegra_is_excluded_by_name(soc: TegraGpu, tmp_path: Path) -> None:
    found = inventory(jetson(tmp_path, soc))
    assert found.devices == () and found.problems == ()
    (excluded,) = found.excluded
    assert (excluded.name, excluded.code) == ("gpu-17000000-gpu", "unsupported-platform")
    assert "Tegra" in excluded.reason and "nvidia,tegra234" in excluded.reason and "driver nvgpu" in excluded.reason
    assert "nvidia-ctk" in excluded.hint


def test_nodes_without_a_platform_device_are_enough(tmp_path: Path) -> None:
    host = jetson(tmp_path)
    _remove_device(host)
    (excluded,) = inventory(host).excluded
    assert (excluded.name, excluded.code) == ("gpu-tegra", "unsupported-platform")


def test_a_tegra_without_a_device_and_nodes_has_no_gpu(tmp_path: Path) -> None:
    host = jetson(tmp_path, ORIN)
    _remove_device(host)
    assert inventory(host) == Inventory()


def _only_model(host: Host) -> None:
    _compatible(host).unlink()
    (host.proc / "device-tree/model").write_text("NVIDIA Jetson AGX Thor Developer Kit\n")
    (host.sysfs / "devices/soc0/family").unlink()


def _only_family(host: Host) -> None:
    _compatible(host).unlink()


@pytest.mark.parametrize(("hide", "board"), [(_only_model, "Jetson AGX Thor"), (_only_family, "Tegra 234")])
def test_the_board_is_known_by_any_of_its_marks(hide: Callable[[Host], None], board: str, tmp_path: Path) -> None:
    host = jetson(tmp_path)
    hide(host)
    (excluded,) = inventory(host).excluded
    assert board in excluded.reason


def test_a_file_that_is_no_text_is_no_board(tmp_path: Path) -> None:
    host = jetson(tmp_path)
    for file, content in ((host.sysfs / "devices/soc0/family", b"\xff" * 100), (_compatible(host), b"\xfe\0\xff")):
        file.unlink()
        file.write_bytes(content)
    assert inventory(host) == Inventory()


def test_a_pci_gpu_on_a_tegra_is_judged_as_such(tmp_path: Path) -> None:
    host = build("h100-pcie", tmp_path / "host")
    before = inventory(host)
    (host.proc / "device-tree").mkdir()
    (host.proc / "device-tree/model").write_text("NVIDIA Jetson AGX Thor Developer Kit\n")
    assert inventory(host).devices == before.devices != ()
    assert inventory(host).excluded == before.excluded


def _platform_device(host: Host, name: str, node: str, driver: str | None, bus: str = "platform") -> None:
    """As drivers/accel and drivers/gpu/drm register nodes of a platform device."""
    class_ = "accel" if node.startswith("accel") else "drm"
    device = host.sysfs / "devices" / "platform" / name
    folder = device / class_ / node
    folder.mkdir(parents=True)
    if not (device / "subsystem").is_symlink():
        (device / "subsystem").symlink_to(f"../../../bus/{bus}")
    if driver is not None and not (device / "driver").is_symlink():
        (device / "driver").symlink_to(f"../../../bus/{bus}/drivers/{driver}")
    (folder / "device").symlink_to("../..")
    (host.sysfs / "class" / class_).mkdir(parents=True, exist_ok=True)
    (host.sysfs / "class" / class_ / node).symlink_to(f"../../devices/platform/{name}/{class_}/{node}")


def test_accelerators_and_gpus_of_a_system_on_a_chip_are_excluded_by_name(tmp_path: Path) -> None:
    host = build("cpu-only", tmp_path / "host")
    before = inventory(host)
    _platform_device(host, "fdab0000.npu", "accel0", "rocket")
    _platform_device(host, "fb000000.gpu", "renderD129", "panthor")
    _platform_device(host, "fb000000.gpu", "card1", "panthor")
    _platform_device(host, "display-subsystem", "card0", "rockchip-drm")
    found = inventory(host)
    assert found.devices == before.devices and found.problems == before.problems
    added = {one.name: one for one in found.excluded if one not in before.excluded}
    assert {name: one.code for name, one in added.items()} == {
        "accelerator-fdab0000-npu": "unsupported-platform",
        "gpu-fb000000-gpu": "unsupported-platform",
    }
    reason = added["accelerator-fdab0000-npu"].reason
    assert "/dev/accel/accel0" in reason and "driver rocket" in reason and "Tegra" not in reason
    assert "/dev/dri/renderD129" in added["gpu-fb000000-gpu"].reason
    reader = TreeReader(host, Deadline.of(DEADLINE_S))
    reader.collect()
    device = "sys/devices/platform/fdab0000.npu"
    assert {f"{device}/driver", f"{device}/subsystem"} <= set(reader.entries)


@pytest.mark.parametrize(
    ("name", "bus"),
    [("amdgpu_xcp_0", "platform"), ("amdgpu_xcp.1", "platform"), ("vgem", "platform"), ("vkms", "faux")],
)
def test_nodes_of_no_chip_are_no_platform_gpu(name: str, bus: str, tmp_path: Path) -> None:
    host = build("cpu-only", tmp_path / "host")
    before = inventory(host)
    _platform_device(host, name, "renderD130", None, bus)
    assert inventory(host) == before


@pytest.mark.parametrize("profile", ["mi300x", "mi300x-linux-6.18", "gaudi3"])
def test_partitions_and_pci_functions_are_no_platform_devices(profile: str, tmp_path: Path) -> None:
    found = inventory(build(profile, tmp_path / "host"))
    assert [one.name for one in found.excluded if one.code == "unsupported-platform"] == []


def test_a_tegra_whose_gpu_has_a_render_node_has_one_gpu(tmp_path: Path) -> None:
    host = jetson(tmp_path, ORIN)
    device = (host.sysfs / "bus/platform/devices" / ORIN.device).resolve()
    (device / "drm/renderD128").mkdir(parents=True)
    (device / "drm/renderD128/device").symlink_to(device)
    (host.sysfs / "class/drm").mkdir(parents=True, exist_ok=True)
    (host.sysfs / "class/drm/renderD128").symlink_to(device / "drm/renderD128")
    (excluded,) = inventory(host).excluded
    assert excluded.name == "gpu-17000000-gpu" and "Tegra" in excluded.reason


def test_a_recording_of_a_jetson_has_its_gpu(tmp_path: Path) -> None:
    host = jetson(tmp_path)
    reader = TreeReader(host, Deadline.of(DEADLINE_S))
    reader.collect()
    paths = set(reader.entries)
    assert {"proc/device-tree/compatible", "sys/devices/soc0/family", "dev/nvidia0"} <= paths
    assert reader.entries[f"sys/devices/platform/bus@0/{ORIN.device}/driver"].link is not None


def _compatible(host: Host) -> Path:
    return host.proc / "device-tree/compatible"


def _remove_device(host: Host) -> None:
    name = ORIN.device
    (host.sysfs / "bus/platform/devices" / name).unlink()
    (host.sysfs / "bus/platform/drivers/nvgpu" / name).unlink()
