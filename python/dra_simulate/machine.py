"""The description of a machine: NUMA nodes, PCI host bridges, functions, and the roles of functions under drivers.

Only the description is here. `pci` writes PCI functions to sysfs, `roles` writes roles, and which
machines exist is in `profiles`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeVar

from dra_simulate.tree import Tree

if TYPE_CHECKING:
    from dra_simulate.host_network import HostNetwork

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node: its CPUs in the kernel's list format ("0-55,112-167"), memory, distances to every node."""

    cpus: str
    memory_bytes: int
    distances: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PciId:
    """The IDs of a function; numbers as in the PCI ID database, the class with its programming interface."""

    vendor: int
    device: int
    class_code: int
    subsystem_vendor: int = 0
    subsystem_device: int = 0
    revision: int = 0


@dataclass(frozen=True, slots=True)
class LinkState:
    """A PCIe link: the negotiated speed and width, and the maximum of both ends if it is higher."""

    generation: int
    width: int
    max_generation: int | None = None
    max_width: int | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """A base address register: size in bytes, 64-bit and prefetchable or not."""

    size: int
    prefetchable: bool = False


@dataclass(frozen=True, slots=True)
class RoleContext:
    """The context of a role: the machine, the function, and its directory in the tree."""

    machine: Machine
    function: Function
    path: str
    """The function's folder, "sys/devices/pci0000:15/..."."""


class Role(Protocol):
    """The result of a driver's probe of a function; one implementation for each: interface, RDMA device, GPU, ..."""

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add the role's files, links and device nodes to the tree."""


class PlatformRole(Protocol):
    """The result of a driver's probe of a platform device: the GPU of a Tegra, the control node of a driver."""

    def plan(self, machine: Machine, tree: Tree) -> None:
        """Add its files, links and device nodes to the tree."""


@dataclass(frozen=True, slots=True)
class Sriov:
    """The virtual functions of a physical function: the maximum number, and the enabled ones."""

    total: int
    vf_device: int
    offset: int = 1
    stride: int = 1
    functions: tuple[Function, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """A PCI function. With `children` it is a bridge; with `domain` it is a VMD with a PCI domain below it."""

    address: str
    id: PciId
    driver: str | None = None
    link: LinkState | None = None
    numa_node: int | None = None
    """numa_node, if it differs from the host bridge's; -1 if the firmware does not report it."""
    bars: tuple[Bar, ...] = ()
    roles: tuple[Role, ...] = ()
    attributes: Mapping[str, str | int] = field(default_factory=dict)
    """Further attributes of the function's folder, read-only."""
    sriov: Sriov | None = None
    buses: tuple[int, int] | None = None
    """A bridge's secondary and subordinate bus, if its children do not determine them (an empty slot)."""
    children: tuple[Function, ...] = ()
    domain: HostBridge | None = None

    def within(self) -> Iterator[Function]:
        """The function, its virtual functions, and everything below, in bus order."""
        yield self
        if self.sriov:
            yield from self.sriov.functions
        for child in self.children:
            yield from child.within()
        if self.domain:
            for child in self.domain.functions:
                yield from child.within()


@dataclass(frozen=True, slots=True)
class HostBridge:
    """The root of a PCI hierarchy, "pci0000:15"; node -1: the firmware does not report it."""

    name: str
    numa_node: int
    functions: tuple[Function, ...]
    parent: str = ""
    """The folder below sys/devices that holds it, if the platform has one: that of a VMBus channel under Hyper-V."""

    @property
    def path(self) -> str:
        """Its folder in the tree: "sys/devices/pci0000:15"."""
        return "/".join(filter(None, ("sys/devices", self.parent, self.name)))


@dataclass(frozen=True)
class Machine:
    """A whole host."""

    name: str
    description: str
    nodes: tuple[NumaNode, ...]
    bridges: tuple[HostBridge, ...]
    iommu: bool = True
    together: tuple[tuple[str, ...], ...] = ()
    """Addresses of functions that share an IOMMU group, because nothing between them has ACS."""
    vfio: bool = True
    """True if the module vfio-pci is loaded."""
    iommufd: bool = False
    """True if /dev/iommu exists."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Versions of kernel modules: {"nvidia": "570.124.06"}."""
    nvidia: NvidiaDriver | None = None
    network: HostNetwork | None = None
    """Virtual interfaces, addresses and routes; None: /proc/net has no files."""
    platform: tuple[PlatformRole, ...] = ()
    """What drivers made of devices that are not PCI functions."""
    source: str = ""
    """The source of the layout: a recording of a real host, or a public table; every profile has one."""

    def functions(self) -> Iterator[Function]:
        """Every PCI function, in bus order."""
        for bridge in self.bridges:
            for function in bridge.functions:
                yield from function.within()

    @cached_property
    def iommu_groups(self) -> dict[str, int]:
        """Group of every function, by address; each has its own, as behind switches with ACS, or is with others."""
        if not self.iommu:
            return {}
        groups = {function.address: group for group, function in enumerate(self.functions())}
        for members in self.together:
            groups.update(dict.fromkeys(members, groups[members[0]]))
        return groups

    def changed(self, change: Callable[[Function], Function]) -> Machine:
        """Return the machine with every function replaced by `change`; IOMMU groups stay."""
        bridges = tuple(replace(one, functions=_changed(one.functions, change)) for one in self.bridges)
        other = replace(self, bridges=bridges)
        other.__dict__["iommu_groups"] = self.iommu_groups
        return other

    def with_role(self, kind: type[R]) -> Iterator[tuple[Function, R]]:
        """Every function that has a role of that type, with the role."""
        for function in self.functions():
            for role in function.roles:
                if isinstance(role, kind):
                    yield function, role

    def without(self, addresses: Collection[str]) -> Machine:
        """The machine after these functions, and all below them, were pulled out; numbers of the others stay."""
        rest = replace(
            self,
            bridges=tuple(replace(bridge, functions=_without(bridge.functions, addresses)) for bridge in self.bridges),
        )
        # cached_property stores its value in the instance's dict: the groups of the whole machine.
        rest.__dict__["iommu_groups"] = self.iommu_groups
        return rest


@dataclass(frozen=True, slots=True)
class NvidiaDriver:
    """Versions of NVIDIA's driver; CUDA's as the driver encodes it (12080 is 12.8)."""

    version: str
    cuda: int
    open_kernel_modules: bool = True
    profiles_need_mig: bool = False
    """True if it returns the versioned form of MIG profiles only while MIG mode is on."""
    has_links: bool = True
    """Whether NVIDIA's container toolkit has linked the nodes in /dev/char: the driver reports none of them to udev."""
    id_seed: int = 0
    """Determines the numbers of MIG instances; with 0, those of compute instances count from 0."""


def _without(functions: tuple[Function, ...], addresses: Collection[str]) -> tuple[Function, ...]:
    kept = []
    for function in functions:
        if function.address in addresses:
            continue
        sriov = function.sriov and replace(function.sriov, functions=_without(function.sriov.functions, addresses))
        domain = function.domain and replace(function.domain, functions=_without(function.domain.functions, addresses))
        buses = function.buses or bus_range(function)
        children = _without(function.children, addresses)
        kept.append(replace(function, children=children, sriov=sriov, domain=domain, buses=buses))
    return tuple(kept)


def _changed(functions: tuple[Function, ...], change: Callable[[Function], Function]) -> tuple[Function, ...]:
    changed = []
    for function in functions:
        inside = replace(
            function,
            children=_changed(function.children, change),
            sriov=function.sriov and replace(function.sriov, functions=_changed(function.sriov.functions, change)),
            domain=function.domain and replace(function.domain, functions=_changed(function.domain.functions, change)),
        )
        changed.append(change(inside))
    return tuple(changed)


def bus_of(address: str) -> int:
    """Return the bus number of an address: 0x1b for `0000:1b:00.0`."""
    return int(address.split(":")[1], 16)


def bus_range(function: Function) -> tuple[int, int] | None:
    """A bridge's secondary and subordinate bus: the bus of its children, and the highest below."""
    if function.buses or not function.children:
        return function.buses
    below = [bus_of(child.address) for child in function.within()]
    nested = [bus_range(child) for child in function.children]
    highest = max(below[1:] + [buses[1] for buses in nested if buses])
    return bus_of(function.children[0].address), highest
