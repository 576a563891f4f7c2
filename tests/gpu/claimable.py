"""What lspci, nvidia-smi and ip report of a host's devices, and where the agent's decisions differ from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dra_agent.inventory.model import Inventory
from dra_agent.topology import Topology

RELEVANT_CLASSES = ("02", "03", "12", "0b40")
"""Network, display, processing accelerator, coprocessor: what an operator expects to read of."""
_LINE = re.compile(r"(?P<address>\S+) (?P<class>[0-9a-f]{4}): ")
_DEFAULT = "default"


def relevant_functions(listing: str) -> list[str]:
    """Read `lspci -D -n`: "0000:1a:00.0 0302: 10de:20b5 (rev a1)"; return addresses of the relevant classes."""
    found = (_LINE.match(line) for line in listing.splitlines())
    return [one["address"] for one in found if one and one["class"].startswith(RELEVANT_CLASSES)]


def unexplained(inventory: Inventory, addresses: Iterable[str]) -> list[str]:
    """Return addresses that lspci lists and the agent neither publishes nor excludes."""
    known = {device.pci_address for device in inventory.devices}
    known |= {one.pci_address for one in inventory.excluded if one.pci_address is not None}
    return sorted(set(addresses) - known)


def withheld(inventory: Inventory, addresses: Iterable[str]) -> list[str]:
    """Return GPUs that nvidia-smi lists and the agent does not publish, with its reason."""
    published = {device.pci_address for device in inventory.devices}
    reasons = {one.pci_address: f"{one.code}: {one.reason}" for one in inventory.excluded}
    return [f"{one}: {reasons.get(one, 'not known')}" for one in sorted(set(addresses) - published)]


def used_interfaces(links: str, routes: Iterable[str]) -> dict[str, str]:
    """Read `ip -j -d link` and outputs of `ip -j route`: why the host needs an interface, by its name.

    It has a master, another interface is on top of it, or it carries a default route or one through a gateway.
    """
    found: dict[str, str] = {}
    for link in json.loads(links):
        if "master" in link:
            found[link["ifname"]] = f"is a port of {link['master']}"
        if link.get("link") and "link_netnsid" not in link and _kind(link) not in ("veth", "netkit"):
            found[link["link"]] = f"is below {link['ifname']}"
    for route in (one for output in routes for one in json.loads(output or "[]")):
        hops = route.get("nexthops") or [route]
        for hop in hops:
            is_gateway = "gateway" in hop or "via" in hop
            if "dev" in hop and (is_gateway or route["dst"] == _DEFAULT) and route.get("type", "unicast") == "unicast":
                found.setdefault(hop["dev"], f"carries a route to {route['dst']}")
    return found


def in_use(inventory: Inventory, topology: Topology, used: Mapping[str, str]) -> list[str]:
    """Return published devices with an interface that the host needs, without those that a rule allows."""
    return [
        f"{device.name}: {name} {used[name]}"
        for device in inventory.devices
        if "host_use" not in device.identity
        for name in topology.by_address[device.pci_address].net
        if name in used
    ]


def without_nodes(inventory: Inventory) -> list[str]:
    """Return published devices with which a container gets nothing."""
    return [
        device.name
        for device in inventory.devices
        if not {"ifname", "rdma"} & device.identity.keys()
        and not (device.nodes and all(Path(node.host_path).exists() for node in device.nodes))
    ]


def _kind(link: Mapping[str, Any]) -> str:
    return str(link.get("linkinfo", {}).get("info_kind", ""))
