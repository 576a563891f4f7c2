"""A desktop with an APU, whose GPU uses the memory of the host, and a graphics card in an enclosure with USB4.

Sources: instruction set, carve-out and limits: gpustack/gpustack#4848 and the kernel (amdgpu_amdkfd.c); ids: pci.ids;
`removable`: kernel, pci_set_removable. Assumed: addresses, the bridges of the enclosure.
"""

from __future__ import annotations

from dataclasses import replace

from dra_simulate.machine import Function, HostBridge, LinkState, Machine, NumaNode, PciId
from dra_simulate.parts.amd import radeon_r9700, strix_halo
from dra_simulate.parts.bridges import nvme, port

NAME = "strix-halo"
_GIB = 1 << 30
_BRIDGE = 0x060400
_ROOT, _TUNNEL = PciId(0x1022, 0x150A, _BRIDGE), PciId(0x1022, 0x150B, _BRIDGE)
_ENCLOSURE = PciId(0x8086, 0x5780, _BRIDGE)
_UPSTREAM, _DOWNSTREAM = PciId(0x1002, 0x1478, _BRIDGE), PciId(0x1002, 0x1479, _BRIDGE)
_USB4 = LinkState(1, 4)
"""A tunnel always reports the speed of generation 1."""


def _external(function: Function) -> Function:
    return replace(
        function,
        attributes={**function.attributes, "removable": "removable"},
        children=tuple(_external(child) for child in function.children),
    )


def _enclosure() -> Function:
    gpu = radeon_r9700("0000:65:00.0", 0, machine=NAME)
    # The card could do more than the tunnel that it is behind.
    card = LinkState(_USB4.generation, _USB4.width, 5, 16)
    inner = port("0000:63:00.0", port("0000:64:00.0", gpu, id=_DOWNSTREAM), id=_UPSTREAM, link=card)
    return _external(
        port("0000:61:00.0", port("0000:62:00.0", inner, id=_ENCLOSURE, link=_USB4), id=_ENCLOSURE, link=_USB4)
    )


def machine() -> Machine:
    """The machine."""
    return Machine(
        name=NAME,
        description="Ryzen AI Max+ 395 with 128 GiB, its GPU with a carve-out of 512 MiB, and a Radeon AI PRO R9700"
        " over USB4; its NPU is left out",
        source="memory: gpustack/gpustack#4848, amdgpu (amdgpu_amdkfd.c); ids: pci.ids; addresses, bridges: assumed",
        nodes=(NumaNode("0-31", 128 * _GIB, (10,)),),
        bridges=(
            HostBridge(
                "pci0000:00",
                0,
                (
                    port("0000:00:01.1", _enclosure(), id=_TUNNEL, link=_USB4),
                    port("0000:00:02.1", nvme("0000:c2:00.0", 0), id=_ROOT, link=LinkState(4, 4)),
                    port("0000:00:08.1", strix_halo("0000:c5:00.0", 1), id=_ROOT, link=LinkState(4, 16)),
                ),
            ),
        ),
    )
