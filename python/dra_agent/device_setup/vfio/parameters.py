"""What a claim or a class says of devices that are passed through."""

from __future__ import annotations

from typing import Literal

import msgspec

Interface = Literal["auto", "legacy", "iommufd"]


class VfioConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a device that is passed through, for as long as the claim has it."""

    iommu: Interface = "auto"
    """How its IOMMU is reached: by group (/dev/vfio/GROUP), by iommufd (/dev/iommu), or by whichever the host has."""
