"""Network adapters and RDMA devices, from sysfs.

An interface that was moved into a container's network namespace disappears from the host's sysfs; its device is kept,
by its PCI address, without the attributes of the interface.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence

from dra_agent.host import Host
from dra_agent.inventory.builder import DeviceBuilder
from dra_agent.inventory.model import Device, Diagnostic
from dra_agent.inventory.products import product_of
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.sysfs import SysfsDir
from dra_agent.topology.model import PciFunction

_LINK_TYPES = {1: "ethernet", 32: "infiniband"}
"""ARPHRD_ numbers of linux/if_arp.h."""

_REPRESENTOR = re.compile(r"(c\d+)?pf\d+(vf|sf)\d+")
"""phys_port_name of a representor: the host's side of a virtual function at the adapter's switch."""

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
        self._interface(builder)
        self._rdma(builder)
        builder.set("isSriovVf", function.physfn is not None)
        if function.physfn is not None:
            builder.add_identity(physfn=function.physfn)
        if function.sriov is not None:
            builder.set("sriovVfs", function.sriov.num_vfs)
        return builder.build()

    def close(self) -> None:
        """Nothing is held."""

    def _interface(self, builder: DeviceBuilder) -> None:
        name = self._main_interface(builder)
        if name is None:
            return
        net = self._net(builder, name)
        builder.set("ifName", name)
        builder.add_identity(ifname=name)
        builder.set("mac", net.text("address"))
        builder.set("mtu", net.number("mtu"))
        builder.set("linkType", _LINK_TYPES.get(net.number("type") or 0))
        speed = net.number("speed")
        if speed is not None and 0 < speed < 1 << 31:
            builder.set("linkSpeed", speed)
        state = net.text("operstate")
        builder.set("state", state if state != "unknown" else None)
        # An interface that is administratively down (no IFF_UP) has no carrier, which is not an issue.
        if (net.number("flags") or 0) & 1 and net.number("carrier") == 0:
            builder.add_issue("link-down", f"{name} is switched on and has no link")

    def _rdma(self, builder: DeviceBuilder) -> None:
        function = builder.function
        name = next(iter(function.infiniband), None)
        builder.set("rdma", name is not None)
        if name is None:
            return
        builder.set("rdmaDevice", name)
        builder.add_identity(rdma=name)
        for uverbs in function.uverbs:
            builder.node(f"/dev/infiniband/{uverbs}", "uverbs")
        builder.node("/dev/infiniband/rdma_cm", "rdma-cm")
        port = builder.files.subdir(f"infiniband/{name}/ports/1")
        if "linkType" not in builder.attributes:
            layer = (port.text("link_layer") or "").lower()
            # "Unknown" for adapters with another protocol, such as AWS EFA (kernel: link_layer_show).
            builder.set("linkType", layer if layer in _LINK_TYPES.values() else None)
        state = port.text("state")
        if "state" not in builder.attributes and state is not None:
            builder.set("state", "up" if state.endswith("ACTIVE") else "down")
        physical = (port.text("phys_state") or "").partition(":")[0]
        # ib_port_phys_state: 3 is disabled, 5 is up; the states between them are those of link training.
        if physical.isdecimal() and physical not in ("3", "5") and not (state or "").endswith("ACTIVE"):
            builder.add_issue("link-down", f"port 1 of {name} has no link ({port.text('phys_state')})")
        self._subnet(builder, port, is_active=(state or "").endswith("ACTIVE"))
        rate = _RATE.match(port.text("rate") or "")
        # A port that is down reports the slowest rate there is.
        if "linkSpeed" not in builder.attributes and rate is not None and (state or "").endswith("ACTIVE"):
            builder.set("linkSpeed", round(float(rate[1]) * 1000))

    def _subnet(self, builder: DeviceBuilder, port: SysfsDir, *, is_active: bool) -> None:
        """Set what the first GID names: subnet prefix and GUID of the port (InfiniBand specification, 4.1.1).

        A port has the prefix of its subnet manager only while it is active, and the default one before.
        """
        layer = (port.text("link_layer") or "").lower()
        match = _GID.fullmatch(port.text("gids/0") or "")
        if layer != "infiniband" or not is_active or match is None:
            return
        prefix, guid = (half.replace(":", "") for half in match.groups())
        if prefix.strip("0"):
            builder.set("ibSubnetPrefix", f"0x{prefix}")
            builder.set("ibPortGUID", f"0x{guid}")

    def _main_interface(self, builder: DeviceBuilder) -> str | None:
        names = builder.function.net
        if len(names) < 2:
            return next(iter(names), None)

        def order(name: str) -> tuple[bool, int, str]:
            net = self._net(builder, name)
            return bool(_REPRESENTOR.fullmatch(net.text("phys_port_name") or "")), net.number("dev_port") or 0, name

        return min(names, key=order)

    def _net(self, builder: DeviceBuilder, name: str) -> SysfsDir:
        own = builder.files.subdir(f"net/{name}")
        # A virtio adapter has its interface one level further down.
        return own if own.folder.is_dir() else SysfsDir(self._host.sysfs / "class/net" / name, builder.problems)


def make(host: Host, settings: InventorySettings) -> NicBackend:
    """Make the back end."""
    del settings
    return NicBackend(host)
