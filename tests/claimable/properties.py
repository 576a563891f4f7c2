"""What must hold for the inventory of every host, however its devices and its network are set up.

The answers here come from the description of the host, not from the agent's own rules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from dra_agent.inventory.model import SHARED_ROLES, Inventory
from dra_simulate.host_network import MAIN_TABLE, HostNetwork
from dra_simulate.machine import Function
from dra_simulate.parts.held import DISPLAY, RESERVING
from dra_simulate.roles.drm import AccelNodes
from dra_simulate.roles.network import Interface
from dra_simulate.roles.vendor import MediatedDevices, UioDevice, VendorNode, VirtualDevice

_CLASSES = (0x02, 0x03, 0x12)
"""Network, display, processing accelerator; FPGA cards have the last one."""
_COPROCESSOR = 0x0B40
_ACCELERATOR_CLASSES = ("apex", "accel", "neuron_device")
_IDS = frozenset(
    {
        *((0x1AE0, device) for device in (0x005E, 0x0063)),
        *((0x1D0F, device) for device in (0xF010, 0x9248)),
        *((0x1022, 0x17F0), (0x1AC1, 0x089A), (0x1DED, 0x107F)),
    }
)
"""Of TPUs, FPGAs of AWS, NPUs and Alibaba's RDMA, which have the class of other things."""
_NEEDED = {0x9999: "mxcd", 0x1D94: "kfd", 0x1ED5: "mtgpu", 0x17DB: "cxi"}
"""By PCI vendor: how the name of a node begins without which its libraries do not work."""
_ADDRESS_IN_NAME = re.compile(r"-([0-9a-f]{4,8})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])\b")


def is_relevant(function: Function) -> bool:
    """True if an operator expects to read of this function: by its class, or because an accelerator's node exists."""
    return (
        function.id.class_code >> 16 in _CLASSES
        or function.id.class_code >> 8 == _COPROCESSOR
        or (function.id.vendor, function.id.device) in _IDS
        or any(
            isinstance(role, AccelNodes)
            or (isinstance(role, VendorNode | VirtualDevice) and role.in_class in _ACCELERATOR_CLASSES)
            for role in function.roles
        )
    )


def unexplained(functions: Iterable[Function], inventory: Inventory) -> list[str]:
    """Return addresses of relevant functions that are neither published nor excluded."""
    known = {device.pci_address for device in inventory.devices}
    for one in inventory.excluded:
        known |= {f"{domain}:{bus}:{slot}.{number}" for domain, bus, slot, number in _ADDRESS_IN_NAME.findall(one.name)}
    return [one.address for one in functions if is_relevant(one) and one.address not in known]


def useless(functions: Iterable[Function], inventory: Inventory) -> list[str]:
    """Return published devices with which a container gets nothing that computes or communicates.

    Such a device has no node of its own (a card node alone sets modes), no interface and no RDMA, or its nodes belong
    to a driver without a compute interface, or to programs of the host.
    """
    held = {
        one.address
        for one in functions
        if one.driver in (*RESERVING, *DISPLAY) or any(isinstance(role, UioDevice) for role in one.roles)
    }
    return [
        device.name
        for device in inventory.devices
        if device.pci_address in held
        or (
            all(node.role in (*SHARED_ROLES, "card") for node in device.nodes)
            and not {"ifname", "rdma"} & device.identity.keys()
        )
    ]


def without_nodes(inventory: Inventory) -> list[str]:
    """Return nodes of published devices that do not exist: preparing their claims fails."""
    return [
        f"{node.path} of {device.name}"
        for device in inventory.devices
        for node in device.nodes
        if not os.path.exists(node.host_path)  # noqa: PTH110 - thousands of nodes
    ]


def divided(functions: Iterable[Function], inventory: Inventory) -> list[str]:
    """Return published devices of which parts exist that go to other claims, or to virtual machines."""
    physical = {
        one.address
        for one in functions
        if (one.sriov is not None and one.sriov.functions)
        # NVIDIA's driver for hosts of virtual machines has nothing that CUDA can use.
        or any(isinstance(role, MediatedDevices) and (role.uuids or one.driver == "nvidia") for role in one.roles)
    }
    return [device.name for device in inventory.devices if device.pci_address in physical]


def without_viable_group(functions: Iterable[Function], inventory: Inventory) -> list[str]:
    """Return devices for virtual machines that the kernel does not give, because the host uses a part of their card."""
    used = {one.address.rpartition(".")[0] for one in functions if one.driver == "snd_hda_intel"}
    return [
        device.name
        for device in inventory.devices
        if any(node.role == "vfio" for node in device.nodes) and device.pci_address.rpartition(".")[0] in used
    ]


def wrong_nodes(functions: Iterable[Function], inventory: Inventory) -> list[str]:
    """Return devices with a node that reprograms their card, or without one that their vendor's libraries open."""
    needed = {one.address: _NEEDED.get(one.id.vendor, "") for one in functions}
    found = []
    for device in inventory.devices:
        names = [node.path.rpartition("/")[2] for node in device.nodes]
        is_vfio = any(node.role == "vfio" for node in device.nodes)
        begin = "" if is_vfio else needed[device.pci_address]
        if any("fme" in name for name in names) or (begin and not any(name.startswith(begin) for name in names)):
            found.append(device.name)
    return found


def wireless(functions: Iterable[Function], inventory: Inventory) -> list[str]:
    """Return published adapters whose connection is the host's."""
    adapters = {one.address for one in functions for role in one.roles if isinstance(role, Interface) and role.wireless}
    return [device.name for device in inventory.devices if device.pci_address in adapters]


def uses(network: HostNetwork) -> dict[str, str]:
    """Return by interface why the host needs it: a master, an interface stacked on it, a default or gateway route.

    An address and the route to its own network alone do not count, and neither do routes that the files do not show.
    """
    found: dict[str, str] = {}
    for one in network.interfaces:
        found |= dict.fromkeys(one.ports, f"port of {one.name}")
        if one.parent:
            found[one.parent] = f"carries {one.name}"
    for route in network.routes:
        if route.table != MAIN_TABLE:
            continue
        if route.gateway is not None or route.destination in ("0.0.0.0/0", "::/0"):
            found.setdefault(route.interface, f"route to {route.destination}")
    return found


def taken_from_host(functions: Iterable[Function], network: HostNetwork, inventory: Inventory) -> list[str]:
    """Return published devices with an interface that the host needs."""
    needed = uses(network)
    why = {
        function.address: f"{role.name}: {needed[role.name]}"
        for function in functions
        for role in function.roles
        if isinstance(role, Interface) and role.name in needed
    }
    return [f"{device.name} ({why[device.pci_address]})" for device in inventory.devices if device.pci_address in why]
