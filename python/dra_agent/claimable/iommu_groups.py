"""Whether the host uses a function, so that the kernel gives no other one of its IOMMU group to user space."""

from __future__ import annotations

from dra_agent._native import is_vfio_driver

_BRIDGE_CLASS = "0x06"
_HARMLESS_DRIVERS = frozenset({"pci-stub", "pcieport"})
"""Drivers that do not access memory (Documentation/driver-api/vfio.rst)."""


def blocks_group(driver: str | None, class_: str) -> bool:
    """Return True if a function with this driver and class code keeps its IOMMU group with the host."""
    return not (
        driver is None or class_.startswith(_BRIDGE_CLASS) or driver in _HARMLESS_DRIVERS or is_vfio_driver(driver)
    )
