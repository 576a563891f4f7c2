"""Names of the reasons why a function may not be claimed."""

from __future__ import annotations

from typing import Literal

Code = Literal[
    "no-driver",
    "reserved",
    "user-space-driver",
    "unusable-driver",
    "virtualized",
    "management",
    "part-of-device",
    "vfio-noiommu",
    "no-iommu-group",
    "display",
    "console",
    "physical-function",
    "no-node",
    "no-interface",
    "host-interface",
    "host-address",
]
"""Why a device of the host is not published; stable, for scripts and alerts."""
