"""Devices for virtual machines and user space drivers: bound to vfio-pci while a claim has them, then restored.

An IOMMU group is bound as a whole or not at all, because its devices can access each other's memory.
"""

from __future__ import annotations

from dra_agent.device_setup.vfio.setup import VfioConfig, VfioSetup

__all__ = ["VfioSetup", "VfioConfig"]
