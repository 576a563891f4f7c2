"""Vendors of PCI devices: short names for the `vendor` attribute, and the registry of GPU vendors.

The short names cover vendors of claimable devices, and of adapters that are common in clusters.
"""

from __future__ import annotations

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

GPU_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
"""Vendors of GPUs with a back end, by PCI id: the registry of vendors (docs/contributing/add-a-vendor.md).

The name selects one module in each step, with a function `make`: `dra_agent.inventory.NAME.backend`,
`dra_agent.cdi.edits.NAME` and, if the vendor has values to sample, `dra_agent.telemetry.sources.NAME`. A module is
imported when hardware of the vendor is present. GPUs of other vendors are published with the common attributes.
"""

# Displays of management controllers and virtual machines: not accelerators, and often the only console.
_DISPLAYS = frozenset(
    {"0x1013", "0x102b", "0x1234", "0x1414", "0x15ad", "0x1a03", "0x1af4", "0x1b36", "0x1d0f", "0x80ee"}
)


def vendor_of(vendor_id: str) -> str:
    """Return a vendor's short name, or its PCI id if it has none."""
    return GPU_VENDORS.get(vendor_id) or _VENDORS.get(vendor_id, vendor_id)


def is_plain_display(vendor_id: str) -> bool:
    """Return True if displays of this vendor are only consoles (ASPEED, Matrox, QXL, virtio-gpu, EC2's, ...)."""
    return vendor_id in _DISPLAYS
