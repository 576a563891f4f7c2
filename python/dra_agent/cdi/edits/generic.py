"""Devices that need their own nodes and nothing else: FPGAs, accelerators of /dev/accel, devices bound to vfio-pci.

Sources: the kernel's dfl (dfl-fme.N, dfl-port.N), accel (accelN) and vfio (vfio/GROUP, vfio/vfio) documentation; for
Xilinx cards the render node of xocl and the management node of xclmgmt. The inventory says which of them a device has.
"""

from __future__ import annotations

from dra_agent.cdi.edits import nodes
from dra_agent.cdi.edits.provider import DeviceEdits
from dra_agent.cdi.model import ContainerEdits
from dra_agent.inventory.model import SHARED_ROLES, Device


def plain(device: Device) -> DeviceEdits:
    """Give the nodes of a device, those that its driver shares among all devices apart."""
    common = [node for node in device.nodes if node.role in SHARED_ROLES]
    own = [node for node in device.nodes if node.role not in SHARED_ROLES]
    return DeviceEdits(
        own=nodes.of_device(own, device=device.name),
        common=nodes.of_device(common, device=device.name),
        notes=() if own else ("the host has no device node for it: only its variables are set",),
    )


def passed_through(device: Device) -> DeviceEdits:
    """Give nothing: the nodes of vfio-pci are made when the device is bound to it, and come with the set-up."""
    del device
    return DeviceEdits(own=ContainerEdits())
