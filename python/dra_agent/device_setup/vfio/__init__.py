"""Devices for virtual machines and drivers in user space: bound to vfio-pci while a claim has them, and back after.

An IOMMU group is given away as a whole or not at all, for what is in one can reach each other's memory.
"""

from __future__ import annotations

from dra_agent.device_setup.vfio.setup import VfioConfig, VfioSetup

__all__ = ["VfioSetup", "VfioConfig"]
