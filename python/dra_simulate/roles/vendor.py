"""Character devices that a vendor's driver makes outside of the kernel's classes, and functions bound to VFIO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_simulate.machine import RoleContext
from dra_simulate.system import MAJORS
from dra_simulate.tree import Tree


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
