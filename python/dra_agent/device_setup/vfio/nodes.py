"""The nodes that a container needs of a function under vfio-pci: by group, by iommufd, or both, as the host has them.

Source: Documentation/driver-api/vfio.rst and userspace-api/iommufd.rst of the kernel.
"""

from __future__ import annotations

import time

from dra_agent.cdi.edits import nodes
from dra_agent.cdi.model import ContainerEdits
from dra_agent.deadline import Deadline
from dra_agent.device_setup.vfio.parameters import Interface
from dra_agent.device_setup.vfio.pci_functions import PciFunctions
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host

CONTAINER, IOMMU = "/dev/vfio/vfio", "/dev/iommu"
PATIENCE = 5.0
"""Seconds that udev may take to make a node."""
_LOOK = 0.02


def edits(
    host: Host, functions: PciFunctions, address: str, group: int, interface: Interface, deadline: Deadline
) -> ContainerEdits:
    """Give the edits for one function; PermanentError where the host does not have the interface that is asked for."""
    where = f"device {address}"
    until = deadline.capped(PATIENCE)
    while True:
        legacy = (f"/dev/vfio/{group}", CONTAINER)
        device = functions.vfio_device(address)
        iommufd = (f"/dev/vfio/devices/{device}", IOMMU) if device is not None else ()
        has_legacy = _all_there(host, legacy)
        has_iommufd = bool(iommufd) and _all_there(host, iommufd)
        if {"auto": has_legacy or has_iommufd, "legacy": has_legacy, "iommufd": has_iommufd}[interface]:
            break
        if interface == "iommufd" and not host.dev_path(IOMMU).exists():
            raise PermanentError(
                "iommu: this host has no /dev/iommu", where=where, hint='load iommufd, or ask for iommu "auto"'
            )
        if not until.remaining():
            raise RetryableError(
                f"its nodes are not there: {legacy[0]}, or {'/dev/vfio/devices/vfioN'} with {IOMMU}",
                where=where,
                hint="look at udev, and at the kernel's log (dmesg)",
            )
        time.sleep(_LOOK)
    wanted: tuple[str, ...] = ()
    if interface in ("auto", "legacy") and has_legacy:
        wanted += legacy
    if interface in ("auto", "iommufd") and has_iommufd:
        wanted += iommufd
    return nodes.edits([(node, str(host.dev_path(node))) for node in wanted], device=address)


def _all_there(host: Host, paths: tuple[str, ...]) -> bool:
    return all(host.dev_path(path).exists() for path in paths)
