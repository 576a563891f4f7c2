"""Character devices that a vendor's driver makes outside of the kernel's classes, and functions bound to VFIO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_simulate.machine import RoleContext
from dra_simulate.system import MAJORS
from dra_simulate.tree import WRITABLE, Tree


@dataclass(frozen=True, slots=True)
class VendorNode:
    """A device node with a directory in sysfs below the function: "fpga_region/region0/dfl-port.0"."""

    folder: str
    major: str
    minor: int
    in_class: str | None = None
    """The class that links to the folder; None for a platform device, which has none."""
    node: str | None = None
    """The node's name below /dev, if the folder has another one."""
    attributes: Mapping[str, str | int] = field(default_factory=dict)

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add the folder and the node."""
        name = self.folder.rpartition("/")[2]
        node = self.node or name
        path = f"{site.path}/{self.folder}"
        major = MAJORS[self.major]
        uevent = f"MAJOR={major}\nMINOR={self.minor}\nDEVNAME={node}"
        tree.files(path, {**self.attributes, "dev": f"{major}:{self.minor}", "uevent": uevent})
        tree.node(f"dev/{node}", major, self.minor, 0o600)
        if self.in_class:
            tree.link(f"{path}/device", site.path)
            tree.link(f"{path}/subsystem", f"sys/class/{self.in_class}")
            tree.link(f"sys/class/{self.in_class}/{name}", path)


@dataclass(frozen=True, slots=True)
class VirtualDevice:
    """A device node whose class device has no parent: "neuron0" in class "neuron_device" below sys/devices/virtual."""

    name: str
    in_class: str
    major: str
    minor: int
    linked: bool = False
    """True for a link to the PCI function. The driver does not create it: it replaces a query of the
    driver, which a simulated node cannot answer."""
    attributes: Mapping[str, str | int] = field(default_factory=dict)

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add the device and the node."""
        path = f"sys/devices/virtual/{self.in_class}/{self.name}"
        major = MAJORS[self.major]
        uevent = f"MAJOR={major}\nMINOR={self.minor}\nDEVNAME={self.name}"
        tree.files(path, {**self.attributes, "dev": f"{major}:{self.minor}", "uevent": uevent})
        tree.link(f"{path}/subsystem", f"sys/class/{self.in_class}")
        tree.link(f"sys/class/{self.in_class}/{self.name}", path)
        tree.node(f"dev/{self.name}", major, self.minor)
        if self.linked:
            tree.link(f"{path}/device", site.path)


@dataclass(frozen=True, slots=True)
class FpgaRegion:
    """A reconfigurable region of an Intel FPGA, "region0", in its class."""

    name: str

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add the region's folder; its ports are vendor nodes below it."""
        path = f"{site.path}/fpga_region/{self.name}"
        tree.file(f"{path}/uevent", b"")
        tree.link(f"{path}/device", site.path)
        tree.link(f"{path}/subsystem", "sys/class/fpga_region")
        tree.link(f"sys/class/fpga_region/{self.name}", path)


@dataclass(frozen=True, slots=True)
class VfioDevice:
    """A function bound to vfio-pci: its node by group, and by number for iommufd."""

    number: int

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add the nodes."""
        name, major = f"vfio{self.number}", MAJORS["vfio"]
        path = f"{site.path}/vfio-dev/{name}"
        tree.files(path, {"dev": f"{major}:{self.number}", "uevent": f"MAJOR={major}\nDEVNAME=vfio/devices/{name}"})
        tree.link(f"{path}/device", site.path)
        tree.link(f"{path}/subsystem", "sys/class/vfio-dev")
        tree.link(f"sys/class/vfio-dev/{name}", path)
        tree.node(f"dev/vfio/devices/{name}", major, self.number, 0o600)
        group = site.machine.iommu_groups[site.function.address]
        tree.node(f"dev/vfio/{group}", major, 128 + group, 0o600)


@dataclass(frozen=True, slots=True)
class NoIommuVfioDevice:
    """A function bound to vfio-pci without an IOMMU (vfio's enable_unsafe_noiommu_mode).

    vfio makes a group of its own, whose node has another name, and no node for iommufd (vfio_noiommu_group_alloc).
    """

    number: int
    """Of the group, and of the device."""

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add the group and its node."""
        group = f"sys/kernel/iommu_groups/{self.number}"
        tree.file(f"{group}/name", "vfio-noiommu")
        tree.link(f"{group}/devices/{site.function.address}", site.path)
        tree.link(f"{site.path}/iommu_group", group)
        tree.file("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y", WRITABLE)
        tree.directory(f"{site.path}/vfio-dev/vfio{self.number}")
        tree.node(f"dev/vfio/noiommu-{self.number}", MAJORS["vfio"], 128 + self.number, 0o600)


@dataclass(frozen=True, slots=True)
class UioDevice:
    """A function that a driver in user space has: its node, and the files by which DPDK finds it."""

    number: int
    driver: str
    """The kernel's side: "uio_pci_generic", "igb_uio"."""

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add the node (drivers/uio/uio.c)."""
        name, major = f"uio{self.number}", MAJORS["uio"]
        path = f"{site.path}/uio/{name}"
        uevent = f"MAJOR={major}\nMINOR={self.number}\nDEVNAME={name}"
        version = {"uio_pci_generic": "0.01.0"}.get(self.driver, "0.1")
        tree.files(
            path,
            {"name": self.driver, "version": version, "event": 0, "dev": f"{major}:{self.number}", "uevent": uevent},
        )
        tree.link(f"{path}/device", site.path)
        tree.link(f"{path}/subsystem", "sys/class/uio")
        tree.link(f"sys/class/uio/{name}", path)
        tree.link(f"sys/dev/char/{major}:{self.number}", path)
        tree.node(f"dev/{name}", major, self.number, 0o600)


@dataclass(frozen=True, slots=True)
class VgpuFunction:
    """A virtual function on a vGPU host: NVIDIA's driver has it, for a virtual machine.

    Layout of vGPU 17 and later on Linux 6.8 and later, which have no mediated devices.
    """

    vgpu_type: int = 0
    """Number of the type that is configured; 0: none."""

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add the driver's folder."""
        tree.files(
            f"{site.path}/nvidia",
            {"creatable_vgpu_types": "" if self.vgpu_type else "ID    : vGPU Name", "gpu_instance_id": 0},
        )
        tree.files(f"{site.path}/nvidia", {"current_vgpu_type": self.vgpu_type, "vgpu_params": ""}, WRITABLE)


@dataclass(frozen=True, slots=True)
class MediatedDevices:
    """What a driver offers virtual machines through the kernel's mdev: types, and the devices that were made of them.

    Layout of drivers/vfio/mdev/mdev_sysfs.c; NVIDIA's vGPU up to release 16 and Intel's GVT-g use it.
    """

    types: Mapping[str, str]
    """The names of types by their folders: "nvidia-222": "GRID T4-1B"."""
    uuids: tuple[str, ...] = ()
    """Of devices of the first type."""

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add the folders of types and devices."""
        offered = f"{site.path}/mdev_supported_types"
        for folder, name in self.types.items():
            path = f"{offered}/{folder}"
            tree.files(path, {"name": name, "device_api": "vfio-pci", "available_instances": 16 - len(self.uuids)})
            tree.file(f"{path}/create", b"", WRITABLE)
            tree.directory(f"{path}/devices")
        tree.link(f"sys/class/mdev_bus/{site.function.address}", site.path)
        for uuid in self.uuids:
            path = f"{site.path}/{uuid}"
            tree.file(f"{path}/remove", b"", WRITABLE)
            tree.link(f"{path}/mdev_type", f"{offered}/{next(iter(self.types))}")
            tree.link(f"{path}/subsystem", "sys/bus/mdev")
            tree.link(f"sys/bus/mdev/devices/{uuid}", path)
            tree.link(f"{offered}/{next(iter(self.types))}/devices/{uuid}", path)
