"""How an adapter is divided at this moment."""

from __future__ import annotations

import os
from pathlib import Path

_SUBFUNCTIONS = ("mlx5_core.sf.", "ice.sf.")
"""How names of subfunctions begin on the auxiliary bus (mlx5_sf_dev_add, ice_sf_eth_activate)."""


def divisions(sysfs: Path, address: str) -> str | None:
    """Return the virtual functions and subfunctions of a PCI function, "4 virtual functions"; None without any.

    By their links: a read of `sriov_numvfs` waits for the lock of the device (sriov_numvfs_show in drivers/pci/iov.c).
    """
    try:
        names = os.listdir(sysfs / "bus/pci/devices" / address)  # noqa: PTH208 - a name, not a Path, per entry
    except OSError:
        return None
    counts = {
        "virtual functions": sum(name.startswith("virtfn") for name in names),
        "subfunctions": sum(name.startswith(_SUBFUNCTIONS) for name in names),
    }
    return " and ".join(f"{count} {kind}" for kind, count in counts.items() if count) or None
