"""AWS Neuron devices (Inferentia, Trainium): which /dev/neuronN belongs to which PCI function.

The driver's numbers of nodes do not follow PCI addresses, and its class devices have no parent in sysfs: only the
driver itself returns the PCI address of a node. Source: aws-neuron-driver fca19f7, neuron_cdev.c and neuron_ioctl.h; a
trn2n.48xlarge has neuron0 at 0000:cc:00.0 and neuron1 at 0000:b5:00.0. Not verified on hardware.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path

from dra_agent.diagnostic import Diagnostic
from dra_agent.host import Host
from dra_agent.inventory.sysfs import SysfsDir

NEURON_IOCTL_DEVICE_BDF_EXT = 2 << 30 | 8 << 16 | ord("N") << 8 | 106
"""_IOR('N', 106, pointer) on a 64-bit host."""

_CLASS = "class/neuron_device"
_NODE = re.compile(r"neuron\d+")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_REQUEST = struct.Struct("<IIIBBxx")
"""struct neuron_ioctl_device_bdf_ext: index relative to the opened device; domain, bus, slot and function."""


def nodes_by_address(host: Host) -> dict[str, str]:
    """Return the name of the device node ("neuron3") of each PCI address; nodes that cannot be read are left out."""
    found: dict[str, str] = {}
    classes = SysfsDir(host.sysfs / _CLASS, [])
    for name in classes.names():
        if not _NODE.fullmatch(name):
            continue
        address = classes.subdir(name).link("device") or ""
        if not _PCI_ADDRESS.fullmatch(address):
            try:
                address = query_address(Path(host.dev_path(f"/dev/{name}")))
            except OSError:
                continue
        found[address] = name
    return found


def core_count(host: Host, name: str, problems: list[Diagnostic]) -> int | None:
    """Return the number of physical NeuronCores of a device; None if the driver does not report it."""
    return SysfsDir(host.sysfs / _CLASS / name, problems).number("core_count")


def query_address(node: Path, *, ioctl: Callable[[int, int, bytearray], object] = fcntl.ioctl) -> str:
    """Return the PCI address of a Neuron device ("0000:cc:00.0") from its driver.

    The driver registers no user for a descriptor that is opened for writing only (IS_NEURON_DEVICE_FREE_ACCESS).

    Raises:
        OSError: The node is missing, not accessible, or does not belong to the driver.
    """
    descriptor = os.open(node, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        answer = bytearray(_REQUEST.size)
        ioctl(descriptor, NEURON_IOCTL_DEVICE_BDF_EXT, answer)
    finally:
        os.close(descriptor)
    _, domain, bus, slot, function = _REQUEST.unpack(answer)
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"
