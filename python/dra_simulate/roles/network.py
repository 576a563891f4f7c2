"""Network interfaces and RDMA devices: /sys/class/net, infiniband, infiniband_verbs, infiniband_mad and their nodes.

Layout after the kernel's ABI documents sysfs-class-net and sysfs-class-infiniband.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dra_simulate.machine import RoleContext
from dra_simulate.system import MAJORS
from dra_simulate.tree import WRITABLE, Tree

_ARP_ETHERNET = 1
_ARP_INFINIBAND = 32
_UVERBS_BASE = 192
_ISSM_BASE = 64
_RDMA_CM_MINOR = 58
_COUNTERS = ("port_rcv_data", "port_xmit_data", "port_rcv_errors", "port_xmit_discards", "link_downed")
_MEGABITS_PER_LANE = {10_000: "QDR", 14_000: "FDR", 25_000: "EDR", 50_000: "HDR", 100_000: "NDR", 200_000: "XDR"}


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface. Speed in Mbit/s; `bus_device` is the directory of virtio's bus ("virtio1")."""

    name: str
    mac: str
    index: int
    speed: int = 100_000
    mtu: int = 1500
    up: bool = True
    infiniband: bool = False
    bus_device: str | None = None
    dev_port: int = 0
    cable: bool = True
    """False: the interface can be switched on, and has no link."""
    wireless: bool = False

    @property
    def flags(self) -> int:
        """Its flags: IFF_UP, IFF_BROADCAST and IFF_MULTICAST."""
        return 0x1003 if self.up else 0x1002

    def path(self, site: RoleContext) -> str:
        """Return its folder in the tree."""
        return f"{self._device(site)}/net/{self.name}"

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add the interface below its device and to /sys/class/net."""
        device, path = self._device(site), self.path(site)
        has_link = self.up and self.cable
        add_interface(
            tree,
            path,
            self.name,
            {
                "address": self.mac,
                "addr_len": self.mac.count(":") + 1,
                "broadcast": ":".join(["ff"] * (self.mac.count(":") + 1)),
                "carrier": int(has_link),
                "operstate": "up" if has_link else "down",
                "dev_port": self.dev_port,
                "ifindex": self.index,
                "iflink": self.index,
                "speed": self.speed if has_link else -1,
                "type": _ARP_INFINIBAND if self.infiniband else _ARP_ETHERNET,
                "uevent": f"INTERFACE={self.name}\nIFINDEX={self.index}",
                "phys_port_name": "p0",
            },
            flags=self.flags,
            mtu=self.mtu,
        )
        tree.link(f"{path}/device", device)
        if self.wireless:
            phy = f"{device}/ieee80211/phy{self.index}"
            tree.file(f"{phy}/name", f"phy{self.index}")
            tree.link(f"{path}/phy80211", phy)
        if self.bus_device:
            tree.file(f"{device}/uevent", "DRIVER=virtio_net\nMODALIAS=virtio:d00000001v00001AF4")
            tree.link(f"{device}/driver", "sys/bus/virtio/drivers/virtio_net")
            tree.link(f"{device}/subsystem", "sys/bus/virtio")
            tree.link(f"sys/bus/virtio/devices/{self.bus_device}", device)
            tree.link(f"sys/bus/virtio/drivers/virtio_net/{self.bus_device}", device)

    def _device(self, site: RoleContext) -> str:
        return f"{site.path}/{self.bus_device}" if self.bus_device else site.path


def add_interface(
    tree: Tree, path: str, name: str, attributes: Mapping[str, str | int | bytes], *, flags: int, mtu: int
) -> None:
    """Add an interface's folder, with what every Ethernet interface has if `attributes` have no other value."""
    tree.files(
        path,
        {
            "addr_len": 6,
            "broadcast": "ff:ff:ff:ff:ff:ff",
            "dev_id": "0x0",
            "dev_port": 0,
            "duplex": "full",
            "type": _ARP_ETHERNET,
            **{f"statistics/{way}_{what}": 0 for way in ("rx", "tx") for what in ("bytes", "errors", "dropped")},
            **attributes,
        },
    )
    tree.files(path, {"flags": f"0x{flags:x}", "mtu": mtu, "tx_queue_len": 1000}, WRITABLE)
    tree.link(f"{path}/subsystem", "sys/class/net")
    tree.link(f"sys/class/net/{name}", path)


def port_guid(node_guid: str, port: int) -> str:
    """The GUID of a port by its index: that of the node plus the index."""
    stem, _, last = node_guid.rpartition(":")
    return f"{stem}:{(int(last, 16) + port) & 0xFFFF:04x}"


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """An RDMA device with its ports: "mlx5_0", the node GUID as sysfs prints it, and the number of its uverbs node."""

    name: str
    node_guid: str
    number: int
    ethernet: bool = False
    speed: int = 400_000
    active: bool = True
    board: str = "MT_0000000838"
    hca_type: str = "MT4129"
    firmware: str = "28.39.1002"
    ports: int = 1
    without_cable: frozenset[int] = frozenset()
    """Numbers of ports that are switched on and have no link."""
    own_protocol: bool = False
    """Neither InfiniBand nor Ethernet, such as AWS EFA and the ports of a Gaudi: no management datagrams."""

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add the RDMA device, its ports, and the uverbs, umad and issm nodes."""
        path = f"{site.path}/infiniband/{self.name}"
        tree.files(
            path,
            {
                "node_guid": self.node_guid,
                "sys_image_guid": self.node_guid,
                "fw_ver": self.firmware,
                "hca_type": self.hca_type,
                "hw_rev": "0",
                "board_id": self.board,
                "node_type": "7: unspecified" if self.own_protocol else "1: CA",
                "uevent": f"NAME={self.name}",
            },
        )
        tree.file(f"{path}/node_desc", f"host {self.name}", WRITABLE)
        tree.link(f"{path}/device", site.path)
        tree.link(f"{path}/subsystem", "sys/class/infiniband")
        tree.link(f"sys/class/infiniband/{self.name}", path)
        for port in range(1, self.ports + 1):
            tree.files(f"{path}/ports/{port}", self._port(port))
            tree.files(f"{path}/ports/{port}/counters", dict.fromkeys(_COUNTERS, 0))
        major = MAJORS["infiniband_verbs"]
        self._character(site, tree, "infiniband_verbs", f"uverbs{self.number}", major, _UVERBS_BASE + self.number)
        if not self.own_protocol:
            self._character(site, tree, "infiniband_mad", f"umad{self.number}", major, self.number)
            self._character(site, tree, "infiniband_mad", f"issm{self.number}", major, _ISSM_BASE + self.number)
        tree.file("sys/class/infiniband_verbs/abi_version", 6)
        tree.node("dev/infiniband/rdma_cm", MAJORS["misc"], _RDMA_CM_MINOR)
        tree.file("sys/class/misc/rdma_cm/dev", f"{MAJORS['misc']}:{_RDMA_CM_MINOR}")

    def _port(self, port: int) -> dict[str, str | int | bytes]:
        if port in self.without_cable:
            state, physical, rate = "1: DOWN", "2: Polling", "10 Gb/sec (4X SDR)"
        else:
            state = "4: ACTIVE" if self.active else "1: DOWN"
            physical = "5: LinkUp" if self.active else "3: Disabled"
            rate = f"{self.speed // 1000} Gb/sec (4X {_MEGABITS_PER_LANE.get(self.speed // 4, 'EDR')})"
        low = port_guid(self.node_guid, port - 1).split(":")
        return {
            "state": state,
            "phys_state": physical,
            "link_layer": "Unknown" if self.own_protocol else "Ethernet" if self.ethernet else "InfiniBand",
            "rate": rate,
            "lid": "0x0" if self.ethernet else f"0x{self.number + port:x}",
            "sm_lid": "0x0" if self.ethernet else "0x1",
            "lid_mask_count": 0,
            "cap_mask": "0xa751e848",
            "gids/0": ":".join(["fe80", "0000", "0000", "0000", *low]),
            "gid_attrs/types/0": "RoCE v2" if self.ethernet else "IB/RoCE v1",
            "pkeys/0": "0xffff",
        }

    def _character(self, site: RoleContext, tree: Tree, kind: str, name: str, major: int, minor: int) -> None:
        path = f"{site.path}/{kind}/{name}"
        tree.files(
            path,
            {
                "dev": f"{major}:{minor}",
                "ibdev": self.name,
                "uevent": f"MAJOR={major}\nMINOR={minor}\nDEVNAME=infiniband/{name}",
            },
        )
        tree.file(f"{path}/abi_version" if kind == "infiniband_verbs" else f"{path}/port", 1)
        tree.link(f"{path}/device", site.path)
        tree.link(f"{path}/subsystem", f"sys/class/{kind}")
        tree.link(f"sys/class/{kind}/{name}", path)
        tree.link(f"sys/dev/char/{major}:{minor}", path)
        tree.node(f"dev/infiniband/{name}", major, minor)
