"""Vendors of PCI devices: short names for the `vendor` attribute, and the registry of GPU vendors.

The short names cover vendors of claimable devices, and of adapters that are common in clusters.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

_VENDORS = {
    "0x1000": "broadcom",
    "0x1022": "amd",
    "0x1077": "qlogic",
    "0x10ec": "realtek",
    "0x10ee": "xilinx",
    "0x1137": "cisco",
    "0x1172": "altera",
    "0x1414": "microsoft",
    "0x1425": "chelsio",
    "0x14e4": "broadcom",
    "0x15b3": "mellanox",
    "0x17cb": "qualcomm",
    "0x1924": "solarflare",
    "0x19e5": "huawei",
    "0x1ae0": "google",
    "0x1af4": "virtio",
    "0x1bcf": "nec",
    "0x1d0f": "amazon",
    "0x1da3": "habana",
    "0x1dd8": "pensando",
    "0x1ded": "alibaba",
    "0x1e52": "tenstorrent",
    "0x1ed5": "moorethreads",
    "0xcabc": "cambricon",
}


class UncountedProcesses(NamedTuple):
    """Processes that submit work to a GPU by another way than DRM."""

    folder: str
    """Below /sys, with a folder for each such process, by its number."""
    reason: str


class NumberedNodes(NamedTuple):
    """Device nodes that a driver makes without an entry in /sys: their paths end with the minor number."""

    prefix: str
    """Of the path, as containers see it: "/dev/nvidia"."""
    major: int


class GpuVendor(NamedTuple):
    """A vendor of GPUs, and what generic parts have to know of it."""

    name: str
    """The value of the `vendor` attribute. It selects the vendor's module in each step."""
    process_source: str | None = None
    """The module of `dra_agent.telemetry.sources` that reads what processes do."""
    uncounted: UncountedProcesses | None = None
    """Processes whose use of a GPU the kernel does not count by client of DRM."""
    reports_xids: bool = False
    """Events of its GPUs have numbers, which health counts."""
    has_driver_root: bool = False
    """Its driver may be below `Host.driver_root`, where it is bound and unbound while claims hold its GPUs."""
    numbered_nodes: NumberedNodes | None = None
    """Nodes of its GPUs that are not in /sys; the identity of the device has the number as `minor`."""


GPU_VENDORS = {
    "0x10de": GpuVendor(
        "nvidia",
        "nvidia_processes",
        reports_xids=True,
        has_driver_root=True,
        # Linux, Documentation/admin-guide/devices.txt
        numbered_nodes=NumberedNodes("/dev/nvidia", 195),
    ),
    "0x1002": GpuVendor(
        "amd",
        "drm_processes",
        UncountedProcesses("class/kfd/kfd/proc", "it uses /dev/kfd, whose work amdgpu does not count"),
    ),
    "0x8086": GpuVendor("intel", "drm_processes"),
}
"""Vendors of GPUs with a back end, by PCI id: the registry of vendors (docs/contributing/add-a-vendor.md).

Required modules of a vendor: `dra_agent.inventory.NAME.backend` and `dra_agent.cdi.edits.NAME`. Optional ones:
`dra_agent.telemetry.sources.NAME`, `dra_agent.device_setup.NAME`, `dra_agent.doctor.vendors.NAME` and
`dra_agent.doctor.record.vendors.NAME`. Generic parts find them by name: `vendor_module`. GPUs of other vendors are
published with the common attributes.
"""


def vendor_of(vendor_id: str) -> str:
    """Return a vendor's short name, or its PCI id if it has none."""
    known = GPU_VENDORS.get(vendor_id)
    return known.name if known is not None else _VENDORS.get(vendor_id, vendor_id)


def gpu_vendor(name: str) -> GpuVendor | None:
    """Return the entry of a vendor in the registry; None if it has no back end."""
    return next((vendor for vendor in GPU_VENDORS.values() if vendor.name == name), None)


def vendor_module(package: str, name: str) -> ModuleType | None:
    """Import the module of a vendor in a package such as "dra_agent.device_setup"; None if it has none there."""
    module = f"{package}.{name}"
    return None if find_spec(module) is None else import_module(module)
