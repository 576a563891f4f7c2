"""The kernel's cgroup controller of device memory: which region of it a GPU's memory is.

Source: Documentation/admin-guide/cgroup-v2.rst, "DMEM"; regions are named "drm/0000:03:00.0/vram0".
"""

from __future__ import annotations

from dra_agent.inventory.builder import DeviceBuilder
from dra_agent.inventory.sysfs import SysfsDir

MECHANISM = "dmem"


def set_dmem_region(draft: DeviceBuilder) -> None:
    """Note the region, or why the controller cannot hold shares of this GPU to their memory."""
    capacities = SysfsDir(draft.host.sysfs / "fs/cgroup", draft.problems).key_values("dmem.capacity")
    regions = [name for name in capacities if name.startswith(f"drm/{draft.function.pci_address}/vram")]
    if not capacities:
        draft.memory_limits[MECHANISM] = "the kernel has no cgroup controller dmem (6.14 and later have)"
    elif not regions:
        draft.memory_limits[MECHANISM] = "its driver has registered no memory with the cgroup controller dmem"
    elif len(regions) > 1:
        draft.memory_limits[MECHANISM] = f"its memory is in {len(regions)} regions, and a limit is for one"
    else:
        draft.memory_limits[MECHANISM] = ""
        draft.add_identity(dmem=regions[0])
