"""Whether an adapter has virtual functions at this moment."""

from __future__ import annotations

import os
from pathlib import Path


def virtual_functions(sysfs: Path, address: str) -> int:
    """Return the number of virtual functions of a PCI function; 0 if it is not there.

    By their links: a read of `sriov_numvfs` waits for the lock of the device (sriov_numvfs_show in drivers/pci/iov.c).
    """
    try:
        names = os.listdir(sysfs / "bus/pci/devices" / address)  # noqa: PTH208 - a name, not a Path, per entry
    except OSError:
        return 0
    return sum(name.startswith("virtfn") for name in names)
