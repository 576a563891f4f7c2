"""Functions that another driver than their vendor's compute driver has, so that no container can use them."""

from __future__ import annotations

from dataclasses import replace

from dra_simulate.machine import Function, PciId, Role, Sriov
from dra_simulate.roles.drm import DrmNodes
from dra_simulate.roles.vendor import (
    MediatedDevices,
    NoIommuVfioDevice,
    UioDevice,
    VfioDevice,
    VgpuFunction,
    VirtualDevice,
)

_FIRST_RENDER = 128
_GIM_MINOR = 120
"""The kernel assigns minors of misc devices dynamically."""

RESERVING = ("pci-stub", "pciback", "gim", "NovaCore", "xclmgmt")
"""Drivers that make nothing of the function which a container could use."""
DISPLAY = ("nouveau", "radeon")
"""Drivers with DRM nodes and without a compute interface."""
USER_SPACE = ("uio_pci_generic", "igb_uio")


def without_driver(function: Function) -> Function:
    """The function before a driver is loaded."""
    return replace(function, driver=None, roles=(), attributes={})


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


def with_mediated_devices(function: Function, *uuids: str) -> Function:
    """A GPU without virtual functions whose driver offers parts of it to virtual machines, which have those `uuids`."""
    types = {"i915-GVTg_V5_4": "GVTg_V5_4"} if function.driver == "i915" else {"nvidia-222": "GRID T4-1B"}
    return replace(function, roles=(*function.roles, MediatedDevices(types, uuids)))


def vgpu_host(function: Function, types: tuple[int, ...], *, total: int = 16) -> Function:
    """An NVIDIA GPU on a vGPU host: its driver has the virtual functions, one for each of `types` (0: not used)."""
    slot = function.address.rpartition(":")[0]
    pci = function.id
    functions = tuple(
        Function(
            # The GPU's first VF offset is 4 (seen on H200), and ARI counts on into the device number.
            f"{slot}:{(4 + which) >> 3:02x}.{(4 + which) & 7}",
            PciId(pci.vendor, pci.device, pci.class_code, pci.subsystem_vendor, pci.subsystem_device, pci.revision),
            driver="nvidia",
            roles=(VgpuFunction(vgpu_type),),
        )
        for which, vgpu_type in enumerate(types)
    )
    return replace(function, sriov=Sriov(total, pci.device, offset=4, functions=functions))
