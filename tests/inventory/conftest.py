"""A small host of files, and PCI functions as a scan would have found them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_agent.host import Host
from dra_agent.topology import DeviceKind, PciFunction, Topology

FunctionMaker = Callable[..., PciFunction]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    for name in ("sys/bus/pci/devices", "sys/class/net", "dev", "proc"):
        (tmp_path / name).mkdir(parents=True)
    return Host(tmp_path / "sys", tmp_path / "dev", tmp_path / "proc", None)


@pytest.fixture
def write(host: Host) -> Callable[[str, object], None]:
    """Write a file below the host's root: write("sys/module/amdgpu/version", "6.12.12")."""

    def write(path: str, content: object) -> None:
        target = host.sysfs.parent / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{content}\n")

    return write


@pytest.fixture
def function(host: Host) -> FunctionMaker:
    """Make a PCI function with a folder in sysfs; keywords overrule what a bare function has."""

    def make(address: str, kind: DeviceKind, vendor: str, device: str, **facts: Any) -> PciFunction:
        (host.sysfs / "bus/pci/devices" / address).mkdir(parents=True, exist_ok=True)
        for name in facts.get("net", ()):
            (host.sysfs / "class/net" / name).mkdir(exist_ok=True)
        values: dict[str, Any] = {
            "class_": "0x030000",
            "subsystem_vendor": None,
            "subsystem_device": None,
            "revision": None,
            "numa_node": 0,
            "numa_source": "device",
            "pcie_root": f"pci{address[:7]}",
            "parents": (),
            "pcie_switch": None,
            "driver": "driver",
            "iommu_group": None,
            "link": None,
            "card_link": None,
            "sriov": None,
            "physfn": None,
            "virtfns": (),
            "net": (),
            "infiniband": (),
            "uverbs": (),
            "drm": None,
            "accel": (),
            "kfd": None,
            "vfio": None,
            "noiommu": False,
            "uio": (),
            "mdevs": None,
            "invalid_names": (),
        }
        return PciFunction(pci_address=address, kind=kind, vendor_id=vendor, device_id=device, **(values | facts))

    return make


@pytest.fixture
def topology_of() -> Callable[..., Topology]:
    def make(*functions: PciFunction) -> Topology:
        return Topology(numa_nodes=(), devices=functions, distances={}, problems=())

    return make
