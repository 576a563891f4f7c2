"""The ports of one network adapter function: an interface, a port of an RDMA device, or both for one cable.

Drivers number both: interfaces by `dev_port` from 0, ports of an RDMA device from 1 (mlx4_en_init_netdev,
ipoib_parent_init). The GID table of an RDMA port has the name of its interface, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dra_agent.host import Host
from dra_agent.inventory.builder import DeviceBuilder
from dra_agent.inventory.sysfs import SysfsDir

_IFF_UP = 1
_DISABLED, _LINK_UP = "3", "5"
"""ib_port_phys_state; the states between them are those of link training."""

_REPRESENTOR = re.compile(r"(c\d+)?pf\d+(vf|sf)\d+")
"""phys_port_name of a representor: the host's side of a virtual function at the adapter's switch."""

LinkState = Literal["up", "down", "off"]
"""`down`: switched on and without a link; `off`: switched off by the administrator, or unknown."""


@dataclass(frozen=True, slots=True)
class NetInterface:
    """A network interface of the function, and its directory."""

    name: str
    files: SysfsDir
    number: int
    """Its dev_port: 0 for the first port, and for all interfaces of drivers that do not set it."""
    state: LinkState


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of an RDMA device, and its directory."""

    device: str
    number: int
    files: SysfsDir
    state: LinkState
    """Of the physical link, which a port has before the subnet manager activates it."""
    is_active: bool
    """True if traffic passes (IB_PORT_ACTIVE)."""
    link_layer: str
    """"ethernet", "infiniband", or what the kernel has for other protocols."""


@dataclass(frozen=True, slots=True)
class Port:
    """A port: its interface, its RDMA port, or both."""

    interface: NetInterface | None
    rdma: RdmaPort | None

    @property
    def state(self) -> LinkState:
        """Return the state; a port without a link by either of the two is down."""
        states = {one.state for one in (self.interface, self.rdma) if one is not None}
        return "down" if "down" in states else "up" if "up" in states else "off"

    @property
    def problems(self) -> list[str]:
        """Return why it is down."""
        found = []
        if self.interface is not None and self.interface.state == "down":
            found.append(f"{self.interface.name} is switched on and has no link")
        if self.rdma is not None and self.rdma.state == "down":
            physical = self.rdma.files.text("phys_state")
            found.append(f"port {self.rdma.number} of {self.rdma.device} has no link ({physical})")
        return found


def preferred(ports: Sequence[Port]) -> Port | None:
    """Return the first port that has a link, or the first one; None if no ports exist."""
    return next((port for port in ports if port.state == "up"), next(iter(ports), None))


def read_ports(host: Host, builder: DeviceBuilder) -> list[Port]:
    """Return the ports of a function in their order; representors of virtual functions are none.

    An interface that was moved into a container leaves its RDMA port.
    """
    files = {name: _interface_files(host, builder, name) for name in builder.function.net}
    representors = {
        name for name, folder in files.items() if _REPRESENTOR.fullmatch(folder.text("phys_port_name") or "")
    }
    interfaces = sorted(
        (_interface(name, folder) for name, folder in files.items() if name not in representors),
        key=lambda one: (one.number, one.name),
    )
    rdma = [port for device in builder.function.infiniband for port in _rdma_ports(builder, device)]
    of_interface: dict[str, RdmaPort] = {}
    separate = []
    for port in rdma:
        named = port.files.text("gid_attrs/ndevs/0")
        free = [one for one in interfaces if one.name not in of_interface]
        interface = (
            interfaces[0]
            if len(interfaces) == len(rdma) == 1
            else next((one for one in free if one.name == named), None)
            or next((one for one in free if one.number == port.number - 1), None)
        )
        # With an embedded switch, the RDMA device has a port for each representor after that of the uplink.
        if named in representors or (interface is None and representors and port.number > 1):
            continue
        if interface is None:
            separate.append(port)
        else:
            of_interface[interface.name] = port
    return [
        *(Port(one, of_interface.get(one.name)) for one in interfaces),
        *(Port(None, port) for port in separate),
    ]


def link_layers(files: SysfsDir, device: str) -> list[str]:
    """Return the link layer of each port of an RDMA device, as of `RdmaPort`; `files`: of its PCI function."""
    return [_link_layer(folder) for _, folder in _port_folders(files, device)]


def _interface_files(host: Host, builder: DeviceBuilder, name: str) -> SysfsDir:
    own = builder.files.subdir(f"net/{name}")
    # A virtio adapter has its interface one level further down.
    return own if own.folder.is_dir() else SysfsDir(host.sysfs / "class/net" / name, builder.problems)


def _interface(name: str, files: SysfsDir) -> NetInterface:
    state: LinkState = "off"
    # An interface that is administratively down has no carrier, which is not an issue.
    if (files.number("flags") or 0) & _IFF_UP:
        state = "down" if files.number("carrier") == 0 else "up"
    return NetInterface(name, files, files.number("dev_port") or 0, state)


def _rdma_ports(builder: DeviceBuilder, device: str) -> list[RdmaPort]:
    return [_rdma_port(device, number, files) for number, files in _port_folders(builder.files, device)]


def _port_folders(files: SysfsDir, device: str) -> list[tuple[int, SysfsDir]]:
    folder = files.subdir(f"infiniband/{device}/ports")
    return [(number, folder.subdir(str(number))) for number in sorted(map(int, filter(str.isdecimal, folder.names())))]


def _link_layer(files: SysfsDir) -> str:
    return (files.text("link_layer") or "").lower()


def _rdma_port(device: str, number: int, files: SysfsDir) -> RdmaPort:
    physical = (files.text("phys_state") or "").partition(":")[0]
    is_active = (files.text("state") or "").endswith("ACTIVE")
    state: LinkState = "off"
    if is_active or physical == _LINK_UP:
        state = "up"
    elif physical.isdecimal() and physical != _DISABLED:
        state = "down"
    return RdmaPort(device, number, files, state, is_active, _link_layer(files))
