"""The host's own network: virtual interfaces in sysfs, with the links to the interfaces below and above them.

Layout after the kernel's net/core/dev.c (`netdev_adjacent_sysfs_add`), drivers/net/bonding/bond_sysfs*.c and
net/bridge/br_sysfs_*.c. Addresses and routes are in `proc_net`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dra_simulate import pci
from dra_simulate.parts.bridges import mac
from dra_simulate.roles.network import Interface, add_interface
from dra_simulate.tree import Tree

if TYPE_CHECKING:
    from dra_simulate.machine import Machine

IFF_UP, IFF_BROADCAST, IFF_NOARP, IFF_MASTER, IFF_SLAVE, IFF_MULTICAST = 0x1, 0x2, 0x80, 0x400, 0x800, 0x1000
"""linux/if.h; sysfs shows the flags without those that depend on the link."""
_ETHERNET = IFF_UP | IFF_BROADCAST | IFF_MULTICAST
MAIN_TABLE, LOCAL_TABLE = 254, 255
"""Routing tables of linux/rtnetlink.h."""
BOND_MODES = ("balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb")
"""By the number that sysfs prints after the name."""
_FORWARDING = 3
"""BR_STATE_FORWARDING of linux/if_bridge.h."""


@dataclass(frozen=True, slots=True)
class Netdev:
    """An interface as the network sees it: where it is in sysfs, its number, and whether packets can pass."""

    name: str
    path: str
    index: int
    mac: str
    speed: int
    mtu: int
    is_enabled: bool
    """It is switched on (IFF_UP)."""
    is_up: bool
    """It also has a link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualInterface:
    """An interface without hardware. Files that follow the hardware are read-only: `tree.write` replaces only those."""

    name: str
    index: int
    mtu: int = 1500
    ports: tuple[str, ...] = ()
    """The interfaces that it is the master of."""
    parent: str | None = None
    """The interface that it is stacked on without being its master."""

    kind: ClassVar[str] = ""
    """As rtnetlink and `ip link` name it."""
    device_type: ClassVar[str | None] = None
    """DEVTYPE of its uevent, if the driver sets one."""
    flags: ClassVar[int] = _ETHERNET
    port_flags: ClassVar[int] = 0
    """Flags that a port has in addition."""
    inherits_address: ClassVar[bool] = True
    needs_port: ClassVar[bool] = False
    """It has no link without a port that has one."""

    def address(self, lower: Iterable[Netdev]) -> str:
        """Return the hardware address: that of the first interface below, or an own one."""
        first = next(iter(lower), None) if self.inherits_address else None
        return mac(self.name, self.index, "02:00:00") if first is None else first.mac

    def own(self, path: str, ports: Iterable[Netdev], tree: Tree) -> None:
        """Add the files that only this kind of interface and its ports have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bond(VirtualInterface):
    """A bond of the kernel's bonding driver. Under RoCE LAG its members share one RDMA device."""

    mode: str = "802.3ad"

    kind = "bond"
    device_type = "bond"
    needs_port = True
    flags = _ETHERNET | IFF_MASTER
    port_flags = IFF_SLAVE

    def own(self, path: str, ports: Iterable[Netdev], tree: Tree) -> None:
        """Add the folders `bonding` and `bonding_slave`; members get the bond's address (fail_over_mac none)."""
        ports = tuple(ports)
        active = ports[0].name if self.mode == "active-backup" and ports else None
        tree.files(
            f"{path}/bonding",
            {
                "mode": f"{self.mode} {BOND_MODES.index(self.mode)}",
                "slaves": _line([one.name for one in ports]),
                "active_slave": _line([active] if active else []),
                "mii_status": "up" if any(one.is_up for one in ports) else "down",
                "miimon": 100,
                "updelay": 0,
                "downdelay": 0,
                "use_carrier": 1,
                "lacp_rate": "slow 0",
                "xmit_hash_policy": "layer3+4 1",
                "fail_over_mac": "none 0",
                # Empty without LACP.
                "ad_aggregator": _line(["1"] if self._is_lacp else []),
                "ad_num_ports": _line([str(len(ports))] if self._is_lacp else []),
            },
        )
        for one in ports:
            tree.file(f"{one.path}/address", self.address(ports))
            tree.files(
                f"{one.path}/bonding_slave",
                {
                    "state": "backup" if active not in (None, one.name) else "active",
                    "mii_status": "up" if one.is_up else "down",
                    "link_failure_count": 0,
                    "perm_hwaddr": one.mac,
                    "queue_id": 0,
                    "ad_aggregator_id": "1" if self._is_lacp else "N/A",
                },
            )

    @property
    def _is_lacp(self) -> bool:
        return self.mode == "802.3ad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge(VirtualInterface):
    """A bridge of the kernel, as libvirt, Docker and CNI plugins make them."""

    kind = "bridge"
    device_type = "bridge"
    needs_port = True

    def address(self, lower: Iterable[Netdev]) -> str:
        """Return the lowest address of its ports (br_stp_recalculate_bridge_id)."""
        return min((one.mac for one in lower), default=mac(self.name, self.index, "02:00:00"))

    def own(self, path: str, ports: Iterable[Netdev], tree: Tree) -> None:
        """Add the folders `bridge`, `brif` and `brport`."""
        ports = tuple(ports)
        bridge_id = f"8000.{self.address(ports).replace(':', '')}"
        tree.directory(f"{path}/brif")
        tree.files(f"{path}/bridge", {"bridge_id": bridge_id, "root_id": bridge_id, "stp_state": 0, "root_port": 0})
        for number, one in enumerate(ports, 1):
            folder = f"{one.path}/brport"
            # Priority 128 in the upper bits (br_make_port_id).
            identity = {"port_id": f"0x{0x8000 | number:x}", "port_no": f"0x{number:x}", "designated_bridge": bridge_id}
            tree.files(folder, {**identity, "state": _FORWARDING if one.is_up else 0, "path_cost": 2, "priority": 32})
            tree.link(f"{folder}/bridge", path)
            tree.link(f"{path}/brif/{one.name}", folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVswitch(VirtualInterface):
    """The device of Open vSwitch's datapath, "ovs-system": the master of its ports (net/openvswitch/vport-netdev.c)."""

    kind = "openvswitch"
    flags = IFF_BROADCAST | IFF_MULTICAST

    inherits_address = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVswitchPort(VirtualInterface):
    """An internal port of Open vSwitch, "br-ex", with the host's addresses; its links lead to no hardware."""

    kind = "openvswitch"

    inherits_address = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Vlan(VirtualInterface):
    """An interface for one VLAN of its parent."""

    vlan_id: int

    kind = "vlan"
    device_type = "vlan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vrf(VirtualInterface):
    """A VRF: the routes of its ports are in a separate table."""

    table: int

    kind = "vrf"
    device_type = "vrf"
    flags = IFF_UP | IFF_NOARP | IFF_MASTER

    inherits_address = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Macvlan(VirtualInterface):
    """A second interface with an own address on the parent's link."""

    kind = "macvlan"

    inherits_address = False


@dataclass(frozen=True, slots=True)
class Address:
    """An address of an interface with its prefix length: "10.1.2.3/24", "fd00::3/64"."""

    interface: str
    address: str


@dataclass(frozen=True, slots=True)
class Route:
    """A route: "0.0.0.0/0" through a gateway, or without one to the link itself."""

    destination: str
    interface: str
    gateway: str | None = None
    metric: int = 0
    table: int = MAIN_TABLE


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """What the host has configured; interfaces are in the order of creation, so that each is above earlier ones."""

    interfaces: tuple[VirtualInterface, ...] = ()
    addresses: tuple[Address, ...] = ()
    routes: tuple[Route, ...] = ()


def netdevs(machine: Machine) -> dict[str, Netdev]:
    """Return every interface by name, those of hardware first.

    Those that are stacked on an interface that is gone are gone too; a master stays without its ports.
    """
    found = {
        role.name: Netdev(
            role.name,
            role.path(site),
            role.index,
            role.mac,
            role.speed,
            role.mtu,
            is_enabled=role.up,
            is_up=role.up and role.cable,
        )
        for bridge in machine.bridges
        for site in pci.sites(machine, bridge)
        for role in site.function.roles
        if isinstance(role, Interface)
    }
    for one in machine.network.interfaces if machine.network else ():
        if one.parent is not None and one.parent not in found:
            continue
        lower = _lower(one, found)
        # A VLAN or macvlan cannot be on while its parent is off.
        is_enabled = bool(one.flags & IFF_UP) and (one.parent is None or found[one.parent].is_enabled)
        depends = one.needs_port or one.parent is not None
        is_up = is_enabled and (not depends or any(below.is_up for below in lower))
        found[one.name] = Netdev(
            one.name,
            f"sys/devices/virtual/net/{one.name}",
            one.index,
            one.address(lower),
            _speed(one, lower),
            one.mtu,
            is_enabled=is_enabled,
            is_up=is_up,
        )
    return found


def plan(machine: Machine, tree: Tree) -> None:
    """Add the virtual interfaces, and what their ports and parents have."""
    if machine.network is None:
        return
    known = netdevs(machine)
    hardware = {role.name: role for _, role in machine.with_role(Interface)}
    present = [one for one in machine.network.interfaces if one.name in known]
    for one in present:
        netdev, lower = known[one.name], _lower(one, known)
        kind = f"DEVTYPE={one.device_type}\n" if one.device_type else ""
        add_interface(
            tree,
            netdev.path,
            one.name,
            {
                "address": netdev.mac,
                "carrier": int(netdev.is_up),
                "operstate": "up" if netdev.is_up else "down",
                "ifindex": one.index,
                "iflink": known[one.parent].index if one.parent else one.index,
                "speed": netdev.speed,
                "duplex": "full" if netdev.speed > 0 else "unknown",
                "uevent": f"{kind}INTERFACE={one.name}\nIFINDEX={one.index}",
                # Assigned by user space: NET_NAME_USER.
                "name_assign_type": 3,
            },
            flags=one.flags if netdev.is_enabled else one.flags & ~IFF_UP,
            mtu=one.mtu,
        )
        for below in lower:
            tree.link(f"{netdev.path}/lower_{below.name}", below.path)
            tree.link(f"{below.path}/upper_{one.name}", netdev.path)
        ports = [known[name] for name in one.ports if name in known]
        for port in ports:
            tree.link(f"{port.path}/master", netdev.path)
            if one.port_flags and port.name in hardware:
                tree.file(f"{port.path}/flags", f"0x{hardware[port.name].flags | one.port_flags:x}", 0o644)
        one.own(netdev.path, ports, tree)
    bonds = [one.name for one in present if isinstance(one, Bond)]
    if bonds:
        # A file of the module among the links of the class.
        tree.file("sys/class/net/bonding_masters", " ".join(bonds))


def _lower(one: VirtualInterface, known: Mapping[str, Netdev]) -> list[Netdev]:
    names = (*one.ports, *([one.parent] if one.parent else ()))
    return [known[name] for name in names if name in known]


def _speed(one: VirtualInterface, lower: list[Netdev]) -> int:
    up = [below.speed for below in lower if below.is_up]
    if isinstance(one, Bond) and one.mode == "802.3ad":
        return sum(up) if up else -1
    return max(up, default=-1)


def _line(words: list[str]) -> bytes:
    """Return words as one line; none are an empty file."""
    return f"{' '.join(words)}\n".encode() if words else b""
