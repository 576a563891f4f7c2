"""Compute partitions of AMD's chips as amdgpu computes them: the modes by dies and memory mode, and their resources.

Source: drivers/gpu/drm/amd/amdgpu/aqua_vanjaram.c (update_supported_modes, get_px_mode_info, is_valid_mode,
get_xcp_res_info), as of Linux 6.18.
"""

from __future__ import annotations

_BY_DIES = {
    8: ("SPX", "DPX", "QPX", "CPX"),
    6: ("SPX", "TPX", "CPX"),
    4: ("SPX", "DPX", "CPX"),
    2: ("SPX", "CPX"),
    1: ("SPX", "CPX"),
}
"""Dies are accelerator dies (XCC); a chip with another number of them has no modes."""
_PARTITIONS = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}
_MEMORY_MODES = {
    "SPX": ("NPS1",),
    "DPX": ("NPS1", "NPS2"),
    "TPX": ("NPS1", "NPS4"),
    "QPX": ("NPS1", "NPS4"),
    "CPX": ("NPS1", "NPS4"),
}


def supported_modes(dies: int) -> tuple[str, ...]:
    """Return the modes of a chip in all memory modes."""
    return _BY_DIES.get(dies, ())


def partitions(mode: str, dies: int) -> int:
    """Return the number of partitions of a mode."""
    return _PARTITIONS.get(mode, dies)


def memory_modes(mode: str, supported: tuple[str, ...]) -> tuple[str, ...]:
    """Return the memory modes of a compute mode, of those that the firmware supports."""
    return tuple(one for one in _MEMORY_MODES[mode] if one in supported)


def is_valid(mode: str, dies: int, memory_mode: str) -> bool:
    """Return True if amdgpu accepts this compute mode in this memory mode of a chip."""
    if mode not in supported_modes(dies) or memory_mode not in _MEMORY_MODES[mode]:
        return False
    return {"DPX": dies % 4 == 0, "TPX": dies % 3 == 0, "QPX": dies >= 8, "CPX": dies > 1}.get(mode, dies > 0)


def resources(mode: str, dies: int, *, media: int) -> dict[str, tuple[int, int]]:
    """Return instances of a resource in one partition, and the number of partitions that share them, by sysfs name.

    `media`: video decoders of the chip, one for each of its base dies. There are two copy engines for each
    accelerator die, and eight rings for each JPEG decoder.
    """
    count = partitions(mode, dies)
    amounts = {"xcc": dies, "dma": 2 * dies, "dec": media, "jpeg": media}
    shares = {name: (max(amount // count, 1), max(count // amount, 1)) for name, amount in amounts.items()}
    return {**shares, "jpeg": (shares["jpeg"][0] * 8, shares["jpeg"][1])}
