"""Intel GPUs as PCI functions: Flex under i915, Battlemage under xe."""

from __future__ import annotations

from dataclasses import dataclass

from dra_simulate.machine import Bar, Function, LinkState, PciId, Role, Sriov
from dra_simulate.parts.bridges import port
from dra_simulate.roles.drm import DrmNodes, MemoryRegion
from dra_simulate.roles.vendor import VfioDevice
from dra_simulate.roles.xe import VfProvisioning

_INTEL = 0x8086
_DISPLAY, _VGA = 0x038000, 0x030000
_FLEX = PciId(_INTEL, 0x56C0, _DISPLAY, _INTEL, 0x4905, 0x08)
_UPSTREAM, _DOWNSTREAM = PciId(_INTEL, 0x4FA0, 0x060400, 0, 0, 0x01), PciId(_INTEL, 0x4FA4, 0x060400, 0, 0, 0x01)
_GIB, _MIB = 1 << 30, 1 << 20
_FLEX_MEMORY = 16 * _GIB
_TOTAL_VFS = 12


@dataclass(frozen=True, slots=True)
class Battlemage:
    """A board with a Battlemage GPU: its PCI device id, memory as sold, and width of its PCIe 5 link.

    The driver reports less memory than the board has: 112 of 32,768 MiB are stolen on a recorded B70 (0x7f9000000 of
    0x800000000 bytes in the log of xe); the same part is assumed for other boards.
    """

    device: int
    memory_gib: int
    width: int

    @property
    def usable_bytes(self) -> int:
        """Memory without the reservations of firmware and driver."""
        stolen = self.memory_gib * 7 // 2
        return self.memory_gib * _GIB - -(-stolen // 16) * 16 * _MIB


ARC_PRO_B50 = Battlemage(0xE212, 16, 8)
ARC_PRO_B60 = Battlemage(0xE211, 24, 8)
ARC_PRO_B65 = Battlemage(0xE222, 32, 16)
ARC_PRO_B70 = Battlemage(0xE223, 32, 16)


def flex170(bus: int, card: int, *, virtual: int = 0) -> Function:
    """A Flex 170 card with its own switch on `bus`; its GPU is two buses below.

    `virtual` functions have equal shares of the memory and their own DRM nodes; the last one is bound to VFIO.
    """
    gpu_bus = bus + 2
    physical = f"0000:{gpu_bus:02x}:00.0"
    share = _FLEX_MEMORY // (virtual + 1) if virtual else _FLEX_MEMORY
    functions = tuple(_flex_vf(f"0000:{gpu_bus:02x}:00.{n + 1}", card + 1 + n, share) for n in range(virtual - 1))
    if virtual:
        bound = Function(f"0000:{gpu_bus:02x}:00.{virtual}", _FLEX, driver="vfio-pci", roles=(VfioDevice(0),))
        functions = (*functions, bound)
    gpu = Function(
        physical,
        _FLEX,
        driver="i915",
        link=LinkState(4, 16),
        bars=(Bar(16 * _MIB, prefetchable=True), Bar(_FLEX_MEMORY, prefetchable=True)),
        roles=(_nodes(card, share),),
        attributes=_sensors(card, "i915", 150, temp1_input=40_000),
        sriov=Sriov(31, 0x56C0, functions=functions),
    )
    link = LinkState(4, 16)
    downstream = port(f"0000:{bus + 1:02x}:01.0", gpu, id=_DOWNSTREAM, link=link)
    return port(f"0000:{bus:02x}:00.0", downstream, id=_UPSTREAM, link=link)


def battlemage(
    address: str,
    card: int,
    *,
    board: Battlemage = ARC_PRO_B60,
    virtual: int = 0,
    quota: int = 0,
    dmem: bool = True,
) -> Function:
    """A Battlemage board under mainline xe.

    `virtual` functions have `quota` bytes of the memory each. A kernel with `dmem` (6.14 and later) lists the memory;
    an older one reports it nowhere in sysfs.
    """
    stem = address.rpartition(".")[0]
    pci = PciId(_INTEL, board.device, _VGA, _INTEL, 0x1100)

    def roles(number: int, memory: int) -> tuple[Role, ...]:
        nodes = DrmNodes(card + number, 128 + card + number)
        return (nodes, MemoryRegion("vram0", memory)) if dmem else (nodes,)

    functions = tuple(
        Function(f"{stem}.{number}", pci, driver="xe", roles=roles(number, quota)) for number in range(1, virtual + 1)
    )
    # Kernels with files for virtual functions (6.19) have dmem.
    provisioning: tuple[Role, ...] = (VfProvisioning(_TOTAL_VFS, virtual, quota),) if dmem else ()
    return Function(
        address,
        pci,
        driver="xe",
        link=LinkState(5, board.width),
        bars=(Bar(16 * _MIB, prefetchable=True), Bar(32 * _GIB, prefetchable=True)),
        roles=(*roles(0, board.usable_bytes), *provisioning),
        attributes={
            "tile0/gt0/freq0/max_freq": 2400,
            "tile0/gt0/freq0/act_freq": 0,
            "tile0/gt0/freq0/throttle/status": 0,
            "tile0/gt0/engines/ccs/name": "ccs",
            **_sensors(card, "xe", 200, energy2_input=0, temp2_input=40_000, temp3_input=42_000),
        },
        sriov=Sriov(_TOTAL_VFS, board.device, functions=functions),
    )


def _flex_vf(address: str, card: int, memory: int) -> Function:
    return Function(address, _FLEX, driver="i915", roles=(_nodes(card, memory),))


def _nodes(card: int, memory: int) -> DrmNodes:
    attributes = {
        "lmem_total_bytes": memory,
        "lmem_avail_bytes": memory,
        "gt/gt0/rps_max_freq_mhz": 2050,
        "gt/gt0/rps_act_freq_mhz": 0,
        "gt/gt0/throttle_reason_status": 0,
    }
    return DrmNodes(card, 128 + card, attributes)


def _sensors(number: int, driver: str, limit_watts: int, **files: int) -> dict[str, str | int]:
    """Return the files of an idle GPU's sensors, after the kernel's ABI documents sysfs-driver-intel-*-hwmon."""
    own: dict[str, str | int] = {"name": driver, "energy1_input": 0, "power1_max": limit_watts * 1_000_000, **files}
    return {f"hwmon/hwmon{number}/{name}": value for name, value in own.items()}
