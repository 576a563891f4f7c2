"""AMD Instinct GPUs, a Radeon and an APU as PCI functions.

PCI ids: amdgpu_drv.c, libdrm's amdgpu.ids. Compute units and memory: AMD's data sheets. Memory of the MI300X and of the
MI210 in bytes: as amdgpu reports it on such boards; others: their nominal size minus the reservation of the MI300X.
"""

from __future__ import annotations

from dataclasses import replace

from dra_simulate.machine import Bar, Function, LinkState, PciId
from dra_simulate.parts.bridges import number, serial_number
from dra_simulate.roles.amd import LINUX_6_14, LINUX_6_18, XCP_NODES, AmdGpu, AmdgpuDriver
from dra_simulate.roles.drm import DrmNodes, MemoryRegion

_AMD = 0x1002
_GIB, _MIB = 1 << 30, 1 << 20
_FIRST_RENDER = 128
_DOORBELLS = (Bar(2 * _MIB, prefetchable=True), Bar(512 << 10))


def mi300x(address: str, index: int, *, machine: str, driver: AmdgpuDriver = LINUX_6_14) -> Function:
    """An MI300X; `index` counts GPUs."""
    return _accelerator(address, index, 0x74A1, _MI300X, machine, driver)


def mi308x(address: str, index: int, *, machine: str, driver: AmdgpuDriver = LINUX_6_14) -> Function:
    """An MI308X: an MI300X of four dies."""
    role = replace(_MI300X, name="AMD Instinct MI308X OAM", compute_units=80, dies=4)
    return _accelerator(address, index, 0x74A2, role, machine, driver)


def mi300a(address: str, index: int, *, machine: str, driver: AmdgpuDriver = LINUX_6_14) -> Function:
    """An MI300A, an APU: amdgpu reports no VRAM, and KFD reports TTM's limit on its NUMA node.

    It is half of 128 GiB minus the kernel's reservation, a number of pages that none of its modes divides.
    """
    role = replace(
        _MI300X,
        name="AMD Instinct MI300A",
        memory_bytes=16_106_131 * 4096,
        compute_units=228,
        dies=6,
        memory_modes=(),
        carve_out_bytes=0,
        media=3,
    )
    return _accelerator(address, index, 0x74A0, role, machine, driver)


def mi350x(address: str, index: int, *, machine: str, driver: AmdgpuDriver = LINUX_6_18) -> Function:
    """An MI350X: like the MI355X with air cooling."""
    role = replace(_MI355X, name="AMD Instinct MI350X OAM")
    return _accelerator(address, index, 0x75A0, role, machine, driver)


def mi355x(address: str, index: int, *, machine: str, driver: AmdgpuDriver = LINUX_6_18) -> Function:
    """An MI355X."""
    return _accelerator(address, index, 0x75A3, _MI355X, machine, driver)


_MI300X = AmdGpu(
    card=0,
    render=0,
    name="AMD Instinct MI300X OAM",
    unique_id=0,
    memory_bytes=196_592 * _MIB,
    compute_units=304,
    dies=8,
    gfx_version=90402,
    memory_modes=("NPS1", "NPS4"),
)
_MI355X = replace(
    _MI300X,
    name="AMD Instinct MI355X OAM",
    memory_bytes=294_896 * _MIB,
    compute_units=256,
    gfx_version=90500,
    memory_modes=("NPS1", "NPS2"),
)


def _accelerator(address: str, index: int, device: int, role: AmdGpu, machine: str, driver: AmdgpuDriver) -> Function:
    """A GPU of several dies, with eight DRM devices."""
    card = XCP_NODES * index
    own = replace(
        role,
        card=card,
        render=_FIRST_RENDER + card,
        unique_id=number(machine, "gpu", index),
        hive=number(machine, "hive", 0),
        serial=serial_number(machine, index),
        die_ids=tuple(number(machine, "die", 16 * index + die) for die in range(role.dies)),
        platform_device=(XCP_NODES - 1) * index,
        driver=driver,
    )
    return Function(
        address,
        PciId(_AMD, device, 0x120000, _AMD, device),
        driver="amdgpu",
        link=LinkState(5, 16),
        bars=(Bar(256 * _GIB, prefetchable=True), *_DOORBELLS),
        roles=(DrmNodes(card, own.render), own, *_memory_regions(own)),
    )


def _memory_regions(role: AmdGpu) -> tuple[MemoryRegion, ...]:
    """Memory that amdgpu registers with the cgroup controller (amdgpu_vram_mgr_init); an APU has none."""
    return (
        (MemoryRegion("vram", role.memory_bytes),) if role.driver.counts_memory and role.carve_out_bytes is None else ()
    )


def mi300x_vf(address: str, index: int, *, machine: str, driver: AmdgpuDriver = LINUX_6_14) -> Function:
    """A virtual function of a whole MI300X in a guest: one render node each, and no platform devices.

    Its mode is read-only, as the host sets it. Assumed: the memory, which is that of the physical function.
    """
    whole = _accelerator(address, index, 0x74B5, replace(_MI300X, name="AMD Instinct MI300X VF"), machine, driver)
    roles = tuple(
        replace(one, card=index, render=_FIRST_RENDER + index, platform_device=None, memory_modes=(), is_virtual=True)
        for one in whole.roles
        if isinstance(one, AmdGpu)
    )
    return replace(whole, roles=(DrmNodes(index, _FIRST_RENDER + index), *roles))


def mi210(address: str, card: int, render: int, *, machine: str, hive: int = 0) -> Function:
    """An MI210: one die, no partitions, on a PCIe card; `hive` is that of a bridge over two or four cards, from 1."""
    role = replace(
        _MI200,
        card=card,
        render=render,
        name="AMD Instinct MI210",
        unique_id=number(machine, "amd", card),
        compute_units=104,
        hive=number(machine, "hive", hive) if hive else 0,
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


def mi250x(address: str, die: int, *, machine: str) -> Function:
    """One of the two dies of an MI250X: each is a PCI function with its own memory, and a separate GPU in KFD.

    The name is spelled as in the FRU of the MI200 series.
    """
    role = replace(
        _MI200,
        card=die,
        render=_FIRST_RENDER + die,
        name="AMD INSTINCT MI250X (MCM) OAM AC MBA",
        unique_id=number(machine, "gpu", die),
        compute_units=110,
        hive=number(machine, "hive", 0),
        serial=serial_number(machine, die // 2),
    )
    return Function(
        address,
        PciId(_AMD, 0x7408, 0x038000, _AMD, 0x0B0C, 0x01),
        driver="amdgpu",
        link=LinkState(4, 16),
        bars=(Bar(64 * _GIB, prefetchable=True), *_DOORBELLS),
        roles=(DrmNodes(die, _FIRST_RENDER + die), role),
    )


_MI200 = AmdGpu(
    card=0,
    render=0,
    name="AMD Instinct MI200",
    unique_id=0,
    memory_bytes=65_520 * _MIB,
    compute_units=0,
    dies=1,
    gfx_version=90010,
    xgmi_bandwidth=50_000,
)


def strix_halo(address: str, card: int) -> Function:
    """The GPU of a Ryzen AI Max+ 395, with the firmware's default of 512 MiB for the display.

    KFD reports TTM's limit, half of 128 GiB minus the kernel's reservation. The driver's own limit (amdgpu.gttsize) was
    raised to nearly all of the memory, as users do.
    """
    role = AmdGpu(
        card=card,
        render=_FIRST_RENDER + card,
        name="",
        unique_id=0,
        memory_bytes=16_252_928 * 4096,
        compute_units=40,
        dies=1,
        gfx_version=110501,
        vbios="113-STRXLGEN-001",
        carve_out_bytes=512 * _MIB,
        gtt_bytes=124 * _GIB,
    )
    return Function(
        address,
        PciId(_AMD, 0x1586, 0x038000, _AMD, 0x0124, 0xC1),
        driver="amdgpu",
        link=LinkState(4, 16),
        bars=(Bar(512 * _MIB, prefetchable=True), *_DOORBELLS),
        roles=(DrmNodes(card, role.render), role),
    )


def radeon_r9700(address: str, card: int, *, machine: str) -> Function:
    """A Radeon AI PRO R9700 32GB."""
    role = AmdGpu(
        card=card,
        render=_FIRST_RENDER + card,
        name="",
        unique_id=number(machine, "amd", card),
        memory_bytes=32_624 * _MIB,
        compute_units=64,
        dies=1,
        gfx_version=120001,
        vbios="113-APM107580-100",
        gtt_bytes=62 * _GIB,
    )
    return Function(
        address,
        PciId(_AMD, 0x7551, 0x030000, _AMD, 0x0B36, 0xC0),
        driver="amdgpu",
        link=LinkState(5, 16),
        bars=(Bar(32 * _GIB, prefetchable=True), *_DOORBELLS),
        roles=(DrmNodes(card, role.render), role),
    )
