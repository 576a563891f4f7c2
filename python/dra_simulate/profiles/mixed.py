"""One of each vendor in a server: GPUs of three, two FPGA cards, a Gaudi 2, a SmartNIC, and a drive behind a VMD.

The VMD starts a separate PCI domain with more than four digits, as Intel's do.
"""

from __future__ import annotations

from dra_simulate.machine import Function, HostBridge, LinkState, Machine, NumaNode, NvidiaDriver, PciId
from dra_simulate.models import A100_PCIE
from dra_simulate.parts.accelerators import alveo_u250, gaudi2, pac_d5005
from dra_simulate.parts.amd import mi210
from dra_simulate.parts.bridges import nvme, port, switch
from dra_simulate.parts.intel import battlemage
from dra_simulate.parts.network import bluefield3, broadcom
from dra_simulate.parts.nvidia import gpu

NAME = "mixed"
_GIB = 1 << 30
_VMD = PciId(0x8086, 0x28C0, 0x010400, 0x8086, 0x0000, 0x04)
_ALVEO_INSTANCE = 0xB300
"""XRT numbers a card by bus and function."""


def _vmd() -> Function:
    inner = HostBridge("pci10000:e0", 0, (port("10000:e0:02.0", nvme("10000:e1:00.0", 0), link=LinkState(4, 4)),))
    return Function("0000:64:00.5", _VMD, driver="vmd", domain=inner)


def machine() -> Machine:
    """The machine."""
    gen3, gen4 = LinkState(3, 16), LinkState(4, 16)
    gpus = switch(
        0x18,
        gpu("0000:1a:00.0", A100_PCIE, 0, machine=NAME),
        mi210("0000:1b:00.0", 1, 129, machine=NAME),
        # As on a kernel before 6.14.
        battlemage("0000:1c:00.0", 2, dmem=False),
        link=gen4,
    )
    return Machine(
        name=NAME,
        description="A100, MI210, Arc Pro B60, Alveo U250, PAC D5005, Gaudi 2, BlueField-3, 1 NVMe behind a VMD",
        source="ids: pci.ids; sysfs files: Linux drivers of each card; addresses and combination: assumed",
        nodes=(NumaNode("0-23,48-71", 512 * _GIB, (10, 21)), NumaNode("24-47,72-95", 512 * _GIB, (21, 10))),
        bridges=(
            HostBridge("pci0000:17", 0, (port("0000:17:01.0", gpus, link=gen4),)),
            HostBridge("pci0000:64", 0, (_vmd(),)),
            HostBridge(
                "pci0000:97",
                1,
                (
                    port("0000:97:01.0", gaudi2("0000:98:00.0", 0), link=gen4),
                    port("0000:97:03.0", pac_d5005("0000:99:00.0", 0), link=gen3),
                ),
            ),
            HostBridge(
                "pci0000:b2", 1, (port("0000:b2:01.0", *alveo_u250("0000:b3:00", _ALVEO_INSTANCE, 131), link=gen3),)
            ),
            HostBridge(
                "pci0000:c9",
                1,
                (
                    port("0000:c9:01.0", *bluefield3("0000:ca:00", 0, 4, machine=NAME)),
                    port("0000:c9:05.0", broadcom("0000:cb:00.0", "eno1np0", 2, machine=NAME), link=LinkState(3, 8)),
                ),
            ),
        ),
        # The two functions of the card have no ACS between them, and so share an IOMMU group.
        together=(("0000:b3:00.0", "0000:b3:00.1"),),
        iommufd=True,
        modules={"amdgpu": "6.12.12", "mlx5_core": "24.10-1.1.4", "habanalabs": "1.19.0"},
        nvidia=NvidiaDriver("570.124.06", 12080),
    )
