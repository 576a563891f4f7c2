"""Functions that another driver than their vendor's compute driver has, so that no container can use them."""

from __future__ import annotations

from dataclasses import replace

from dra_simulate.machine import Function, Role
from dra_simulate.roles.drm import DrmNodes
from dra_simulate.roles.vendor import NoIommuVfioDevice, UioDevice, VfioDevice, VirtualDevice

_FIRST_RENDER = 128
_GIM_MINOR = 120
"""The kernel assigns minors of misc devices dynamically."""

RESERVING = ("pci-stub", "pciback", "gim", "NovaCore", "xclmgmt")
"""Drivers that make nothing of the function which a container could use."""
DISPLAY = ("nouveau", "radeon")
"""Drivers with DRM nodes and without a compute interface."""
USER_SPACE = ("uio_pci_generic", "igb_uio")


def held_by(function: Function, driver: str, number: int = 0) -> Function:
    """The function on one of RESERVING, DISPLAY or USER_SPACE; `number`: of the node that the driver makes."""
    roles: tuple[Role, ...] = ()
    if driver in DISPLAY:
        roles = (DrmNodes(number, _FIRST_RENDER + number),)
    elif driver in USER_SPACE:
        roles = (UioDevice(number, driver),)
    elif driver == "gim":
        roles = (VirtualDevice("gim-smi0", "misc", "misc", _GIM_MINOR),)
    return replace(function, driver=driver, roles=roles, attributes={})


def passed_through(function: Function, number: int, *, iommu: bool = True) -> Function:
    """The function on vfio-pci; without an IOMMU, `number` is also that of its group."""
    role: Role = VfioDevice(number) if iommu else NoIommuVfioDevice(number)
    return replace(function, driver="vfio-pci", roles=(role,), attributes={})
