"""Distinguishes APUs, whose GPU uses the host's memory, from graphics cards, by what amdgpu and KFD report.

The driver's own mark (AMD_IS_APU) is in no file of sysfs. KFD's instruction set follows from the same IP version
(amdgpu_discovery_set_ip_blocks, kgd2kfd_probe), so it decides, except for gfx942, which MI300A and MI300X share.
"""

from __future__ import annotations

from dra_agent.inventory.amd.kfd import KfdNode
from dra_agent.inventory.sysfs import SysfsDir
from dra_agent.topology.model import PciFunction

_APUS = frozenset(
    {
        *("gfx902", "gfx90c", "gfx940"),
        *("gfx1013", "gfx1033", "gfx1035", "gfx1036"),
        *("gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"),
    }
)
"""Raven, Renoir and the first MI300A; Cyan Skillfish, Van Gogh, Rembrandt, Raphael and Mendocino; Phoenix, Strix Point,
Strix Halo, Krackan and the one after it."""
_CARDS = frozenset(
    {
        *("gfx701", "gfx802", "gfx803", "gfx900", "gfx904", "gfx906", "gfx908", "gfx90a", "gfx941", "gfx950"),
        *("gfx1010", "gfx1011", "gfx1012", "gfx1030", "gfx1031", "gfx1032", "gfx1034"),
        *("gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201"),
    }
)
_MI300A = "0x74a0"


def is_apu(function: PciFunction, files: SysfsDir, node: KfdNode | None) -> bool | None:
    """Return whether a GPU is part of an APU; None if neither is certain.

    `node` is the GPU's, or that of a partition of it; without one, nothing is known.
    """
    if node is None:
        return None
    if node.isa in _APUS or function.device_id == _MI300A:
        return True
    if node.isa in _CARDS:
        return False
    carve_out = files.number("mem_info_vram_total")
    if carve_out is None:
        return None
    if node.isa == "gfx942":
        # An MI300A without its own id, such as one in a virtual machine, has no memory of its own.
        return False if carve_out else None
    # KFD reports memory beyond the GPU's own for APUs only (apu_prefer_gtt).
    return True if node.memory_bytes is not None and node.memory_bytes > carve_out else None
