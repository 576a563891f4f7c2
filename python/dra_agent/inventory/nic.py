"""Network adapters and RDMA devices, from sysfs.

An interface that was moved into a container's network namespace disappears from the host's sysfs; its device is kept,
by its PCI address, without the attributes of the interface.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence

from dra_agent.diagnostic import Diagnostic
from dra_agent.host import Host
from dra_agent.inventory.builder import DeviceBuilder
from dra_agent.inventory.model import Device
from dra_agent.inventory.nic_ports import NetInterface, Port, RdmaPort, preferred, read_ports
from dra_agent.inventory.products import product_of
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.user_nodes import add_user_nodes
from dra_agent.topology.model import PciFunction

_LINK_TYPES = {1: "ethernet", 32: "infiniband"}
"""ARPHRD_ numbers of linux/if_arp.h."""

_GID = re.compile(r"([0-9a-f]{4}(?::[0-9a-f]{4}){3}):([0-9a-f]{4}(?::[0-9a-f]{4}){3})")
"""An address of a port, as the kernel prints it: fe80:0000:0000:0000:0002:c903:00af:8120."""

_RATE = re.compile(r"(\d+(?:\.\d+)?) Gb/sec")


class NicBackend:
    """Describes network adapters."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def shared_facts(
        self, functions: Sequence[PciFunction], problems: list[Diagnostic], *, again: bool
    ) -> Mapping[str, Hashable]:
        """Return nothing: a description depends on its function only."""
        del functions, problems, again
        return {}

    def describe(self, function: PciFunction, fact: Hashable, problems: list[Diagnostic]) -> Device:
        """Describe a physical or virtual function."""
        del fact
        builder = DeviceBuilder(self._host, function, "nic", problems)
        builder.set("productName", product_of(function))
        self._ports(builder, read_ports(self._host, builder))
        add_user_nodes(builder)
        builder.set("isSriovVf", function.physfn is not None)
        if function.physfn is not None:
            builder.add_identity(physfn=function.physfn)
        if function.sriov is not None:
            builder.set("sriovVfs", function.sriov.num_vfs)
        return builder.build()

    def close(self) -> None:
        """Nothing is held."""

    def _ports(self, builder: DeviceBuilder, ports: Sequence[Port]) -> None:
        """Describe the port that has a link, the first of several; a NIC fails if no port that is switched on has one.

        Most NICs are a PCI function for each port; ConnectX-3, Chelsio T6 and MANA have several ports on one function.
        """
        interface = preferred([port for port in ports if port.interface is not None])
        rdma = interface if interface is not None and interface.rdma is not None else None
        rdma = rdma or preferred([port for port in ports if port.rdma is not None])
        if interface is not None and interface.interface is not None:
            self._interface(builder, interface.interface)
        self._rdma(builder, rdma.rdma if rdma is not None else None)
        if len(ports) > 1:
            builder.set("portCount", len(ports))
        if not any(port.state == "up" for port in ports):
            for port in ports:
                for problem in port.problems:
                    builder.add_issue("link-down", problem)

    def _interface(self, builder: DeviceBuilder, interface: NetInterface) -> None:
        net = interface.files
        builder.set("ifName", interface.name)
        builder.add_identity(ifname=interface.name)
        builder.set("mac", net.text("address"))
        builder.set("mtu", net.number("mtu"))
        builder.set("linkType", _LINK_TYPES.get(net.number("type") or 0))
        speed = net.number("speed")
        if speed is not None and 0 < speed < 1 << 31:
            builder.set("linkSpeed", speed)
        state = net.text("operstate")
        builder.set("state", state if state != "unknown" else None)

    def _rdma(self, builder: DeviceBuilder, port: RdmaPort | None) -> None:
        function = builder.function
        name = port.device if port is not None else next(iter(function.infiniband), None)
        builder.set("rdma", name is not None)
        if name is None:
            return
        builder.set("rdmaDevice", name)
        builder.add_identity(rdma=name)
        for uverbs in function.uverbs:
            builder.node(f"/dev/infiniband/{uverbs}", "uverbs")
        builder.node("/dev/infiniband/rdma_cm", "rdma-cm")
        if port is None:
            return
        if "linkType" not in builder.attributes:
            # "Unknown" for adapters with another protocol, such as AWS EFA (kernel: link_layer_show).
            builder.set("linkType", port.link_layer if port.link_layer in _LINK_TYPES.values() else None)
        state = port.files.text("state")
        if "state" not in builder.attributes and state is not None:
            builder.set("state", "up" if port.is_active else "down")
        self._subnet(builder, port)
        rate = _RATE.match(port.files.text("rate") or "")
        # A port that is down reports the slowest rate there is.
        if "linkSpeed" not in builder.attributes and rate is not None and port.is_active:
            builder.set("linkSpeed", round(float(rate[1]) * 1000))

    def _subnet(self, builder: DeviceBuilder, port: RdmaPort) -> None:
        """Set what the first GID names: subnet prefix and GUID of the port (InfiniBand specification, 4.1.1).

        A port has the prefix of its subnet manager only while it is active, and the default one before.
        """
        match = _GID.fullmatch(port.files.text("gids/0") or "")
        if port.link_layer != "infiniband" or not port.is_active or match is None:
            return
        prefix, guid = (half.replace(":", "") for half in match.groups())
        if prefix.strip("0"):
            builder.set("ibSubnetPrefix", f"0x{prefix}")
            builder.set("ibPortGUID", f"0x{guid}")


def make(host: Host, settings: InventorySettings) -> NicBackend:
    """Make the back end."""
    del settings
    return NicBackend(host)
