"""Devices that need only their nodes: FPGAs, accelerators of /dev/accel, devices bound to vfio-pci.

Sources: the kernel's dfl (dfl-fme.N, dfl-port.N), accel (accelN) and vfio (vfio/GROUP, vfio/vfio) documentation; for
Xilinx cards the render node of xocl and the management node of xclmgmt. The inventory lists the nodes of a device.
"""

from __future__ import annotations

from dra_agent.cdi.edits.provider import DeviceEdits, required_node_edits
from dra_agent.cdi.model import ContainerEdits
from dra_agent.inventory.model import SHARED_ROLES, Device


def plain(device: Device) -> DeviceEdits:
    """Return the nodes of a device; nodes that all devices of its driver share are common edits."""
    common = [node for node in device.nodes if node.role in SHARED_ROLES]
    own = [node for node in device.nodes if node.role not in SHARED_ROLES]
    return DeviceEdits(
        own=required_node_edits(own, device=device.name),
        common=required_node_edits(common, device=device.name),
        notes=() if own else ("the host has no device node for it: only its variables are set",),
    )


def passed_through(device: Device) -> DeviceEdits:
    """Return empty edits: the set-up binds the device to vfio-pci, and adds the nodes that this creates."""
    del device
    return DeviceEdits(own=ContainerEdits())
