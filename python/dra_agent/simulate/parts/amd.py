"""AMD Instinct GPUs as PCI functions."""

from __future__ import annotations

from dra_agent.simulate.machine import Bar, Function, LinkState, PciId
from dra_agent.simulate.parts.bridges import number, serial_number
from dra_agent.simulate.roles.amd import AmdGpu
from dra_agent.simulate.roles.drm import DrmNodes

_AMD = 0x1002
_GIB, _MIB = 1 << 30, 1 << 20


def mi300x(address: str, node: int, index: int, *, machine: str) -> Function:
    """An MI300X; `index` counts GPUs, `node` is its number in the compute topology."""
    role = AmdGpu(
        node=node,
        render=128 + index,
        name="AMD Instinct MI300X OAM",
        unique_id=number(machine, "gpu", index),
        memory_bytes=206_141_652_992,
        compute_units=304,
        dies=8,
        gfx_version=90402,
        hive=number(machine, "hive", 0),
        serial=serial_number(machine, index),
        compute_partitions=("SPX", "DPX", "QPX", "CPX"),
        memory_partitions=("NPS1", "NPS4"),
    )
    return Function(
        address,
        PciId(_AMD, 0x74A1, 0x120000, _AMD, 0x74A1),
        driver="amdgpu",
        link=LinkState(5, 16),
        bars=(Bar(256 * _GIB, prefetchable=True), Bar(2 * _MIB, prefetchable=True), Bar(512 << 10)),
        roles=(DrmNodes(index, 128 + index), role),
    )


def mi210(address: str, node: int, card: int, render: int, *, machine: str) -> Function:
    """An MI210: one die, no partitions, on a PCIe card."""
    role = AmdGpu(
        node=node,
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
        bars=(Bar(64 * _GIB, prefetchable=True), Bar(2 * _MIB, prefetchable=True), Bar(512 << 10)),
        roles=(DrmNodes(card, render), role),
    )
