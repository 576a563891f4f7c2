"""Display adapters that no claim is for: chips of management controllers and virtual machines, and integrated GPUs."""

from __future__ import annotations

from typing import Literal

from dra_simulate.machine import Bar, Function, PciId
from dra_simulate.roles.drm import DrmNodes

_VGA = 0x030000
_MIB = 1 << 20
_FIRST_RENDER = 128

DisplayChip = Literal["ast", "mgag200", "hibmc-drm", "bochs-drm"]
"""By the name of the driver in sysfs, which is not always the module's."""
CHIPS: dict[DisplayChip, PciId] = {
    "ast": PciId(0x1A03, 0x2000, _VGA, 0x1A03, 0x2000, 0x52),
    "mgag200": PciId(0x102B, 0x0536, _VGA, 0x1028, 0x0600, 0x04),
    # The vendor also makes accelerators (Ascend).
    "hibmc-drm": PciId(0x19E5, 0x1711, _VGA, 0x19E5, 0x1711, 0x01),
    "bochs-drm": PciId(0x1234, 0x1111, _VGA, 0x1AF4, 0x1100, 0x02),
}


def display(address: str, card: int, chip: DisplayChip = "ast") -> Function:
    """A chip that only sets modes: a card node, and no render node."""
    bars = (Bar(16 * _MIB), Bar(256 << 10))
    return Function(address, CHIPS[chip], driver=chip, bars=bars, roles=(DrmNodes(card, None),))


def intel_igpu(card: int, *, address: str = "0000:00:02.0") -> Function:
    """The GPU of an Arrow Lake CPU, directly on the host bridge; it has no memory of its own."""
    return Function(
        address,
        PciId(0x8086, 0x7D67, _VGA, 0x8086, 0x2212, 0x06),
        driver="i915",
        bars=(Bar(16 * _MIB, prefetchable=True), Bar(256 * _MIB, prefetchable=True)),
        roles=(DrmNodes(card, _FIRST_RENDER + card),),
    )
