"""GPUs that are no PCI functions: one exclusion each, and none on other hosts."""

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
