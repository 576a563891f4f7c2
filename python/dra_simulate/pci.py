"""PCI functions in sysfs: their directories, links, attributes, IOMMU groups, and the entries of /sys/bus/pci.

Roles add the entries of drivers (interfaces, GPUs). Layout after the kernel's ABI documents sysfs-bus-pci
and sysfs-kernel-iommu_groups.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from dra_simulate import system
from dra_simulate.machine import Function, HostBridge, LinkState, Machine, RoleContext, Sriov, bus_of, bus_range
from dra_simulate.system import MAJORS
from dra_simulate.tree import WRITABLE, Tree

_CAPABILITIES = 0x40
_EXPRESS = 0x10
_HAS_CAPABILITIES = 0x10
_BRIDGE_CLASS = 0x0604
_ENDPOINT, _ROOT_PORT, _UPSTREAM, _DOWNSTREAM = 0, 4, 5, 6


def header(function: Function, *, at_root: bool) -> bytes:
    """256 bytes: identity, bus numbers of a bridge, and the link in an Express capability."""
    pci = function.id
    space = bytearray(256)
    struct.pack_into("<HHHHI", space, 0, pci.vendor, pci.device, 0x0006, 0, pci.class_code << 8 | pci.revision)
    bridge = pci.class_code >> 8 == _BRIDGE_CLASS
    space[0x0E] = 1 if bridge else 0
    if bridge:
        secondary, subordinate = bus_range(function) or (0, 0)
        struct.pack_into("<BBB", space, 0x18, bus_of(function.address), secondary, subordinate)
    else:
        struct.pack_into("<HH", space, 0x2C, pci.subsystem_vendor, pci.subsystem_device)
    if function.link:
        struct.pack_into("<H", space, 0x06, _HAS_CAPABILITIES)
        space[0x34] = _CAPABILITIES
        _express(space, function.link, _kind(function, at_root) if bridge else _ENDPOINT)
    return bytes(space)


def _express(space: bytearray, link: LinkState, kind: int) -> None:
    struct.pack_into("<BBH", space, _CAPABILITIES, _EXPRESS, 0, 2 | kind << 4)
    most = (link.max_generation or link.generation) | (link.max_width or link.width) << 4
    struct.pack_into("<I", space, _CAPABILITIES + 0x0C, most)
    struct.pack_into("<H", space, _CAPABILITIES + 0x12, link.generation | link.width << 4)


def _kind(bridge: Function, at_root: bool) -> int:
    if at_root:
        return _ROOT_PORT
    # An upstream port has only the downstream ports of its switch below it.
    return _UPSTREAM if any(child.id.class_code >> 8 == _BRIDGE_CLASS for child in bridge.children) else _DOWNSTREAM


DRIVERS = "sys/bus/pci/drivers"
VFIO = "vfio-pci"
VFIO_MINOR, IOMMU_MINOR = 196, 259
"""VFIO_MINOR of linux/miscdevice.h; the kernel assigns that of /dev/iommu dynamically."""
SPEEDS = {
    1: "2.5 GT/s PCIe",
    2: "5.0 GT/s PCIe",
    3: "8.0 GT/s PCIe",
    4: "16.0 GT/s PCIe",
    5: "32.0 GT/s PCIe",
    6: "64.0 GT/s PCIe",
}
"""Values of {current,max}_link_speed by generation, since kernel 5.11."""

_IORESOURCE_MEM = 0x200
_IORESOURCE_PREFETCH = 0x2000
_IORESOURCE_MEM_64 = 0x100000
_STANDARD_RESOURCES = 7
_SRIOV_RESOURCES = 6
_BRIDGE_WINDOWS = 4


def plan(machine: Machine, tree: Tree) -> None:
    """Add every PCI function of the machine, with the roles that it has."""
    tree.directory("sys/bus/pci/devices")
    if machine.vfio:
        tree.directory(f"{DRIVERS}/{VFIO}")
        tree.directory("sys/module/vfio_pci")
        tree.node("dev/vfio/vfio", MAJORS["misc"], VFIO_MINOR)
    if machine.iommufd:
        tree.node("dev/iommu", MAJORS["misc"], IOMMU_MINOR, 0o660)
    addresses = _Addresses()
    for bridge in machine.bridges:
        _host_bridge(machine, bridge, tree)
        for site in sites(machine, bridge):
            _function(site, bridge, tree, addresses)
            for role in site.function.roles:
                role.plan(site, tree)
    if machine.iommu:
        _iommu(machine, tree)


def sites(machine: Machine, bridge: HostBridge) -> Iterator[RoleContext]:
    """Return the directory of each function below a host bridge."""

    def below(functions: tuple[Function, ...], folder: str) -> Iterator[RoleContext]:
        for function in functions:
            here = f"{folder}/{function.address}"
            yield RoleContext(machine, function, here)
            if function.sriov:
                yield from below(function.sriov.functions, folder)
            yield from below(function.children, here)
            if function.domain:
                yield from below(function.domain.functions, f"{here}/{function.domain.name}")

    yield from below(bridge.functions, bridge.path)


def modalias(function: Function) -> str:
    """The string by which the kernel matches drivers (format: file2alias in the kernel's sources)."""
    pci = function.id
    base, sub, interface = pci.class_code >> 16, pci.class_code >> 8 & 0xFF, pci.class_code & 0xFF
    return (
        f"pci:v{pci.vendor:08X}d{pci.device:08X}sv{pci.subsystem_vendor:08X}sd{pci.subsystem_device:08X}"
        f"bc{base:02X}sc{sub:02X}i{interface:02X}"
    )


class _Addresses:
    """Allocates bus addresses for BARs, each aligned to its size."""

    def __init__(self) -> None:
        self._next = 0x2000_0000_0000

    def take(self, size: int) -> int:
        start = -(-self._next // size) * size
        self._next = start + size
        return start


def _host_bridge(machine: Machine, bridge: HostBridge, tree: Tree) -> None:
    path = bridge.path
    cpus = system.local(machine, bridge.numa_node)
    bus = bridge.name.removeprefix("pci")
    folder = f"{path}/pci_bus/{bus}"
    tree.file(f"{path}/uevent", b"")
    tree.file(f"{folder}/uevent", b"")
    tree.file(f"{folder}/cpulistaffinity", system.text(cpus))
    tree.file(f"{folder}/cpuaffinity", system.mask(cpus))
    tree.link(f"{folder}/device", path)
    tree.link(f"{folder}/subsystem", "sys/class/pci_bus")
    tree.link(f"sys/class/pci_bus/{bus}", folder)


def _function(site: RoleContext, bridge: HostBridge, tree: Tree, addresses: _Addresses) -> None:
    function, path, machine = site.function, site.path, site.machine
    address, pci = function.address, function.id
    numa = bridge.numa_node if function.numa_node is None else function.numa_node
    cpus = system.local(machine, numa)
    tree.files(
        path,
        {
            "vendor": f"0x{pci.vendor:04x}",
            "device": f"0x{pci.device:04x}",
            "subsystem_vendor": f"0x{pci.subsystem_vendor:04x}",
            "subsystem_device": f"0x{pci.subsystem_device:04x}",
            "class": f"0x{pci.class_code:06x}",
            "revision": f"0x{pci.revision:02x}",
            "modalias": modalias(function),
            "uevent": _uevent(function),
            "resource": _resource(function, addresses),
            "irq": 0,
            "local_cpulist": system.text(cpus),
            "local_cpus": system.mask(cpus),
            "ari_enabled": int(bool(function.sriov)),
            "power_state": "D0",
            **function.attributes,
        },
    )
    tree.files(
        path, {"numa_node": numa, "enable": int(function.driver is not None), "driver_override": "(null)"}, WRITABLE
    )
    tree.traced(f"{path}/config", header(function, at_root=path == f"{bridge.path}/{address}"))
    tree.link(f"{path}/subsystem", "sys/bus/pci")
    tree.link(f"sys/bus/pci/devices/{address}", path)
    if function.link:
        tree.files(path, _link_attributes(function.link))
    buses = bus_range(function)
    if buses:
        tree.files(path, {"secondary_bus_number": buses[0], "subordinate_bus_number": buses[1]})
    if function.driver:
        tree.directory(f"{DRIVERS}/{function.driver}")
        tree.link(f"{path}/driver", f"{DRIVERS}/{function.driver}")
        tree.link(f"{DRIVERS}/{function.driver}/{address}", path)
    if function.sriov:
        _sriov(site, function.sriov, tree)
    if address in machine.iommu_groups:
        group = f"sys/kernel/iommu_groups/{machine.iommu_groups[address]}"
        tree.link(f"{path}/iommu_group", group)
        tree.link(f"{group}/devices/{address}", path)
        tree.file(f"{group}/type", "DMA-FQ", WRITABLE)
        tree.file(f"{group}/reserved_regions", "0x00000000fee00000 0x00000000feefffff msi")


def _sriov(site: RoleContext, sriov: Sriov, tree: Tree) -> None:
    path = site.path
    tree.files(
        path,
        {
            "sriov_totalvfs": sriov.total,
            "sriov_offset": sriov.offset,
            "sriov_stride": sriov.stride,
            "sriov_vf_device": f"{sriov.vf_device:x}",
            "sriov_vf_total_msix": 0,
        },
    )
    tree.files(path, {"sriov_numvfs": len(sriov.functions), "sriov_drivers_autoprobe": 1}, WRITABLE)
    folder = path.rpartition("/")[0]
    for number, function in enumerate(sriov.functions):
        tree.link(f"{path}/virtfn{number}", f"{folder}/{function.address}")
        tree.link(f"{folder}/{function.address}/physfn", path)


def _link_attributes(link: LinkState) -> dict[str, str | int | bytes]:
    return {
        "current_link_speed": SPEEDS[link.generation],
        "current_link_width": link.width,
        "max_link_speed": SPEEDS[link.max_generation or link.generation],
        "max_link_width": link.max_width or link.width,
    }


def _uevent(function: Function) -> bytes:
    pci = function.id
    lines = [f"DRIVER={function.driver}"] if function.driver else []
    lines += [
        f"PCI_CLASS={pci.class_code:X}",
        f"PCI_ID={pci.vendor:04X}:{pci.device:04X}",
        f"PCI_SUBSYS_ID={pci.subsystem_vendor:04X}:{pci.subsystem_device:04X}",
        f"PCI_SLOT_NAME={function.address}",
        f"MODALIAS={modalias(function)}",
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _resource(function: Function, addresses: _Addresses) -> bytes:
    rows = []
    for bar in function.bars:
        start = addresses.take(bar.size)
        flags = _IORESOURCE_MEM | (_IORESOURCE_MEM_64 | _IORESOURCE_PREFETCH | 0x4000C if bar.prefetchable else 0x40000)
        rows.append(f"0x{start:016x} 0x{start + bar.size - 1:016x} 0x{flags:016x}")
        if bar.prefetchable:
            rows.append(_EMPTY_RESOURCE)
    wanted = _STANDARD_RESOURCES + _SRIOV_RESOURCES * bool(function.sriov) + _BRIDGE_WINDOWS * bool(function.children)
    rows += [_EMPTY_RESOURCE] * (wanted - len(rows))
    return "".join(f"{row}\n" for row in rows).encode()


_EMPTY_RESOURCE = " ".join([f"0x{0:016x}"] * 3)


def _iommu(machine: Machine, tree: Tree) -> None:
    unit = "sys/devices/virtual/iommu/dmar0"
    tree.link("sys/class/iommu/dmar0", unit)
    tree.link(f"{unit}/subsystem", "sys/class/iommu")
    for function in machine.functions():
        tree.link(f"{unit}/devices/{function.address}", f"sys/bus/pci/devices/{function.address}")
