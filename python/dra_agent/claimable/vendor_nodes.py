"""Device nodes of vendors whose drivers do not relate them to PCI functions in /sys.

By PCI vendor: the names of some of these drivers are not published.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dra_agent.topology.model import DeviceKind, PciFunction


class VendorNodes(NamedTuple):
    """Nodes of one vendor's driver, by their names below /dev."""

    shared: tuple[str, ...] = ()
    """All its devices share them, and none works without them."""
    optional: tuple[str, ...] = ()
    """As `shared`, but not all versions of the driver make them."""
    own: re.Pattern[str] | None = None
    """One for each device, in some versions without a parent in /sys."""
    needed: str = ""
    """How a node of `own` is called if nodes of DRM alone are not enough: "mtgpu.N"."""


class DriverNodes(NamedTuple):
    """What a vendor's driver made for one function, by names below /dev."""

    own: tuple[str, ...] = ()
    """That a container gets of it."""
    missing: tuple[str, ...] = ()
    """That its vendor's libraries need and that do not exist."""
    unrelated: str | None = None
    """If its own is not known: a node that /sys relates to no function."""


NO_NODES = VendorNodes()
_VENDOR_NODES = {
    # MetaX: MetaX-MACA/vLLM-metax, docs/releases. The id is not registered.
    "0x9999": VendorNodes(shared=("mxcd",)),
    # Hygon's DCU, after its dcu-exporter; drivers for the first cards make /dev/kfd only.
    "0x1d94": VendorNodes(shared=("kfd",), optional=("mkfd",)),
    # Moore Threads.
    "0x1ed5": VendorNodes(own=re.compile(r"mtgpu\.?\d+"), needed="mtgpu.N"),
    # Hailo, hailort-drivers up to 4.22.
    "0x1e60": VendorNodes(own=re.compile(r"hailo\d+|h1x-\d+")),
    # MemryX, class memx_cdev.
    "0x1fe9": VendorNodes(own=re.compile(r"memx\d+")),
    # DEEPX, dxrt_driver_cdev.c.
    "0x1ff4": VendorNodes(own=re.compile(r"dxrt\d+")),
    # habanalabs before it used the kernel's accel class (Linux 6.4).
    "0x1da3": VendorNodes(own=re.compile(r"hl\d+")),
}


def vendor_nodes(function: PciFunction) -> VendorNodes:
    """Return the nodes of its vendor's driver."""
    is_computing = function.kind in (DeviceKind.GPU, DeviceKind.ACCELERATOR)
    return _VENDOR_NODES.get(function.vendor_id, NO_NODES) if is_computing else NO_NODES
