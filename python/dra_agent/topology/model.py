"""The result of a scan of a host, as immutable values. The Rust crate reads it from sysfs."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import cached_property
from typing import Literal

import msgspec

from dra_agent._native import is_vfio_driver
from dra_agent.topology.uevent import Uevent


class DeviceKind(StrEnum):
    """The use of a PCI function; all but OTHER are read in full and have distances."""

    GPU = "gpu"
    ACCELERATOR = "accelerator"
    FPGA = "fpga"
    NIC = "nic"
    NVME = "nvme"
    OTHER = "other"


CLAIMABLE = frozenset({DeviceKind.GPU, DeviceKind.ACCELERATOR, DeviceKind.FPGA, DeviceKind.NIC})
"""Kinds that claims can hold; drives are shown for where they hang."""


class Distance(StrEnum):
    """How far apart two devices are, nearest first, in the levels of `nvidia-smi topo -m`."""

    PIX = "PIX"
    """One switch or bridge, or two functions of one card."""
    PXB = "PXB"
    """Several switches, no host bridge."""
    PHB = "PHB"
    """A host bridge."""
    NODE = "NODE"
    """Two host bridges of one NUMA node."""
    SYS = "SYS"
    """The link between NUMA nodes, or unknown."""


class NumaNode(msgspec.Struct, frozen=True):
    """One NUMA node of the host."""

    id: int
    socket: int | None
    """The CPU package that it is a part of; one package may have several nodes."""
    cpus: str
    """The kernel's list form, "0-7,16-23"; empty for a node of memory only."""
    memory_bytes: int | None
    distances: tuple[int, ...]
    """To every node in the order of their ids; 10 is the node itself."""


class Link(msgspec.Struct, frozen=True):
    """A PCIe link: generation 1 to 7 and lanes, as it is now and as it could be; None is unknown."""

    generation: int | None
    width: int | None
    max_generation: int | None
    max_width: int | None


class Sriov(msgspec.Struct, frozen=True):
    """Virtual functions that a physical function can have, and has."""

    total_vfs: int
    num_vfs: int


class Drm(msgspec.Struct, frozen=True):
    """Names of DRM nodes below /dev/dri: "card0", "renderD128"."""

    card: str | None
    render: str | None


class PciFunction(msgspec.Struct, frozen=True, kw_only=True):
    """One PCI function. Unknown values are None; fields of other kinds are None or empty."""

    pci_address: str
    kind: DeviceKind
    class_: str = msgspec.field(name="class")
    """Base class, subclass and programming interface: "0x030200"."""
    vendor_id: str
    device_id: str
    subsystem_vendor: str | None
    subsystem_device: str | None
    revision: str | None
    numa_node: int | None
    numa_source: Literal["device", "ancestor", "cpulist"] | None
    pcie_root: str
    """The outermost root bus: "pci0000:3a"."""
    parents: tuple[str, ...]
    """Addresses of the bridges above, root port first, also of those that the bus listing lacks."""
    pcie_switch: str | None
    """Upstream port of the top-most switch above; devices with the same one are neighbours."""
    driver: str | None
    iommu_group: int | None
    link: Link | None
    card_link: Link | None
    """Between the card and its slot: as `link`, but across a switch inside the card, and with the maximum that card and
    slot support together."""
    sriov: Sriov | None
    physfn: str | None
    virtfns: tuple[str, ...]
    net: tuple[str, ...]
    infiniband: tuple[str, ...]
    uverbs: tuple[str, ...]
    drm: Drm | None
    accel: tuple[str, ...]
    """Names below /dev: "accel/accel0", "accel0" of a TPU v4, "apex_0"."""
    kfd: int | None
    """Node id of the AMD kernel fusion driver; the lowest one of a partitioned GPU."""
    vfio: str | None
    noiommu: bool
    """Bound to vfio-pci, or a variant of it, without an IOMMU."""
    uio: tuple[str, ...]
    """Names below /dev: "uio0"."""
    mdevs: tuple[str, ...] | None
    """UUIDs of its mediated devices, which are parts of it for virtual machines; None if its driver makes none."""
    invalid_names: tuple[str, ...]
    """Names that are not UTF-8, with escaped bytes, which the fields above lack: "net/eth\\xff"."""

    @property
    def is_vfio(self) -> bool:
        """True if it is bound for a virtual machine or a driver in user space: to vfio-pci, mlx5_vfio_pci, ..."""
        return self.driver is not None and is_vfio_driver(self.driver)


class ScanProblem(msgspec.Struct, frozen=True):
    """Something that was found wrong with one device or file and passed over."""

    where: str
    message: str = msgspec.field(name="what")

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class Topology(msgspec.Struct, frozen=True, dict=True):
    """Every PCI function and NUMA node of a host at one moment; devices are in the order of their addresses."""

    numa_nodes: tuple[NumaNode, ...]
    devices: tuple[PciFunction, ...]
    distances: dict[str, Distance] = {}
    """Each pair of devices once, lower address first: "0000:3b:00.0,0000:5e:00.0"; empty unless requested."""
    problems: tuple[ScanProblem, ...] = ()

    @cached_property
    def by_address(self) -> dict[str, PciFunction]:
        """The devices by their PCI address."""
        return {device.pci_address: device for device in self.devices}

    @cached_property
    def relevant(self) -> tuple[PciFunction, ...]:
        """The devices of every kind but OTHER."""
        return tuple(device for device in self.devices if device.kind is not DeviceKind.OTHER)

    def touched_by(self, events: Iterable[Uevent]) -> frozenset[str] | None:
        """Return the relevant devices that events are about, and those below them; None if one is about no function.

        Such an event, of a module or a platform device, may concern any device.
        """
        addresses = {event.pci_address for event in events}
        if None in addresses:
            return None
        return frozenset(
            device.pci_address
            for device in self.relevant
            if device.pci_address in addresses or not addresses.isdisjoint(device.parents)
        )

    def distance(self, one: str, other: str) -> Distance | None:
        """Return the distance of two devices; None if one is unknown or not relevant, or both are the same.

        Raises:
            ValueError: The snapshot has no distances; use `LiveTopology.distance`.
        """
        if not self.distances and len(self.relevant) > 1:
            raise ValueError("a snapshot without distances")
        return self.distances.get(f"{one},{other}") or self.distances.get(f"{other},{one}")


def address_order(address: str) -> tuple[int, str]:
    """Sort key of PCI addresses: those of one domain have equal length, and those of a higher one are never shorter."""
    return len(address), address


class TopologyChange(msgspec.Struct, frozen=True):
    """The changes of an event or a rescan, by PCI address."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    numa_nodes: bool = False

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.numa_nodes)
