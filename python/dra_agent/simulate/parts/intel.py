"""Intel GPUs as PCI functions: Flex under i915, Battlemage under xe."""

from __future__ import annotations

from dra_agent.simulate.machine import Bar, Function, LinkState, PciId, Sriov
from dra_agent.simulate.parts.bridges import port
from dra_agent.simulate.roles.drm import DrmNodes
from dra_agent.simulate.roles.vendor import VfioDevice

_INTEL = 0x8086
_DISPLAY, _VGA = 0x038000, 0x030000
_FLEX = PciId(_INTEL, 0x56C0, _DISPLAY, _INTEL, 0x4905, 0x08)
_B60 = PciId(_INTEL, 0xE211, _VGA, _INTEL, 0x1100)
_UPSTREAM, _DOWNSTREAM = PciId(_INTEL, 0x4FA0, 0x060400, 0, 0, 0x01), PciId(_INTEL, 0x4FA4, 0x060400, 0, 0, 0x01)
_GIB, _MIB = 1 << 30, 1 << 20
_FLEX_MEMORY = 16 * _GIB


def flex170(bus: int, card: int, *, virtual: int = 0) -> Function:
    """A Flex 170 card with its own switch on `bus`; its GPU is two buses below.

    `virtual` functions have equal shares of the memory and their own DRM nodes; the last one is bound to VFIO.
    """
    gpu_bus = bus + 2
    physical = f"0000:{gpu_bus:02x}:00.0"
    share = _FLEX_MEMORY // (virtual + 1) if virtual else _FLEX_MEMORY
    functions = tuple(_flex_vf(f"0000:{gpu_bus:02x}:00.{n + 1}", card + 1 + n, share) for n in range(virtual - 1))
    if virtual:
        handed_over = Function(f"0000:{gpu_bus:02x}:00.{virtual}", _FLEX, driver="vfio-pci", roles=(VfioDevice(0),))
        functions = (*functions, handed_over)
    gpu = Function(
        physical,
        _FLEX,
        driver="i915",
        link=LinkState(4, 16),
        bars=(Bar(16 * _MIB, prefetchable=True), Bar(_FLEX_MEMORY, prefetchable=True)),
        roles=(_nodes(card, share),),
        sriov=Sriov(31, 0x56C0, functions=functions),
    )
    link = LinkState(4, 16)
    downstream = port(f"0000:{bus + 1:02x}:01.0", gpu, id=_DOWNSTREAM, link=link)
    return port(f"0000:{bus:02x}:00.0", downstream, id=_UPSTREAM, link=link)


def battlemage(address: str, card: int, *, virtual: int = 0) -> Function:
    """An Arc Pro B60 under xe, which reports its memory by tile.

    `virtual` functions have equal quotas of the memory that the physical function leaves.
    """
    memory = 24 * _GIB
    quota = (memory - 2 * _GIB) // virtual if virtual else 0
    stem = address.rpartition(".")[0]
    attributes: dict[str, str | int] = {
        "tile0/physical_vram_size_bytes": f"{memory:#x}",
        "tile0/gt0/freq0/max_freq": 2400,
        "tile0/gt0/engines/ccs/name": "ccs",
    }
    for number in range(1, virtual + 1):
        profile = f"sriov_admin/vf{number}/profile"
        attributes |= {
            f"{profile}/vram_quota": quota,
            f"{profile}/exec_quantum_ms": 32,
            f"{profile}/preempt_timeout_us": 128000,
            f"{profile}/sched_priority": "low [normal] high",
        }
    functions = tuple(
        Function(f"{stem}.{number}", _B60, driver="xe", roles=(DrmNodes(card + number, 128 + card + number),))
        for number in range(1, virtual + 1)
    )
    return Function(
        address,
        _B60,
        driver="xe",
        link=LinkState(5, 8),
        bars=(Bar(16 * _MIB, prefetchable=True), Bar(32 * _GIB, prefetchable=True)),
        roles=(DrmNodes(card, 128 + card),),
        attributes=attributes,
        sriov=Sriov(12, 0xE211, functions=functions) if virtual else None,
    )


def _flex_vf(address: str, card: int, memory: int) -> Function:
    return Function(address, _FLEX, driver="i915", roles=(_nodes(card, memory),))


def _nodes(card: int, memory: int) -> DrmNodes:
    attributes = {"lmem_total_bytes": memory, "lmem_avail_bytes": memory, "gt/gt0/rps_max_freq_mhz": 2050}
    return DrmNodes(card, 128 + card, attributes)
