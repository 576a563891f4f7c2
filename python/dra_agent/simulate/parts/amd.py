"""AMD Instinct GPUs as PCI functions.

PCI ids: amdgpu_drv.c, libdrm's amdgpu.ids. Compute units and memory: AMD's data sheets. Memory of the MI300X and of the
MI210 in bytes: as amdgpu reports it on such boards; of the others: their nominal size less what the MI300X reserves.
"""

from __future__ import annotations

from dra_agent.simulate.machine import Bar, Function, LinkState, PciId
from dra_agent.simulate.parts.bridges import number, serial_number
from dra_agent.simulate.roles.amd import LINUX_6_8, XCP_NODES, AmdGpu, AmdgpuDriver
from dra_agent.simulate.roles.drm import DrmNodes

_AMD = 0x1002
_GIB, _MIB = 1 << 30, 1 << 20
_FIRST_RENDER = 128
_DOORBELLS = (Bar(2 * _MIB, prefetchable=True), Bar(512 << 10))


def mi300x(address: str, index: int, *, machine: str, driver: AmdgpuDriver = LINUX_6_8) -> Function:
    """An MI300X; `index` counts GPUs."""
    card = XCP_NODES * index
    role = AmdGpu(
        card=card,
        render=_FIRST_RENDER + card,
        name="AMD Instinct MI300X OAM",
        unique_id=number(machine, "gpu", index),
        memory_bytes=206_141_652_992,
        compute_units=304,
        dies=8,
        gfx_version=90402,
        hive=number(machine, "hive", 0),
        serial=serial_number(machine, index),
        die_ids=_die_ids(machine, index, 8),
        platform_device=(XCP_NODES - 1) * index,
        memory_modes=("NPS1", "NPS4"),
        driver=driver,
    )
    return Function(
        address,
        PciId(_AMD, 0x74A1, 0x120000, _AMD, 0x74A1),
        driver="amdgpu",
        link=LinkState(5, 16),
        bars=(Bar(256 * _GIB, prefetchable=True), *_DOORBELLS),
        roles=(DrmNodes(card, _FIRST_RENDER + card), role),
    )


def mi210(address: str, card: int, render: int, *, machine: str) -> Function:
    """An MI210: one die, no partitions, on a PCIe card."""
    role = AmdGpu(
        card=card,
        render=render,
        name="AMD Instinct MI210",
        unique_id=number(machine, "amd", card),
        memory_bytes=68_702_699_520,
        compute_units=104,
        dies=1,
        gfx_version=90010,
        serial=serial_number(machine, 50 + card),
    )
    return Function(
        address,
        PciId(_AMD, 0x740F, 0x038000, _AMD, 0x0C34, 0x02),
        driver="amdgpu",
        link=LinkState(4, 16),
        bars=(Bar(64 * _GIB, prefetchable=True), *_DOORBELLS),
        roles=(DrmNodes(card, render), role),
    )


def _die_ids(machine: str, index: int, dies: int) -> tuple[int, ...]:
    return tuple(number(machine, "die", 16 * index + die) for die in range(dies))
