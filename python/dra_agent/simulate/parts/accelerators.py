"""FPGA cards and accelerators other than GPUs."""

from __future__ import annotations

from dra_agent.simulate.machine import Bar, Function, LinkState, PciId
from dra_agent.simulate.roles.drm import AccelNodes, DrmNodes
from dra_agent.simulate.roles.vendor import FpgaRegion, VendorNode

_PROCESSING = 0x120000
_MIB, _GIB = 1 << 20, 1 << 30


def alveo_u250(slot: str, instance: int, render: int) -> tuple[Function, Function]:
    """An Alveo U250 under XRT: the management function, and the one that applications use ("0000:b3:00")."""
    link, board = LinkState(3, 16), (0x10EE, 0x000E)
    management = Function(
        f"{slot}.0",
        PciId(0x10EE, 0x5004, _PROCESSING, *board),
        driver="xclmgmt",
        link=link,
        bars=(Bar(32 * _MIB, prefetchable=True),),
        roles=(VendorNode(f"xrt_mgmt/xclmgmt{instance}", "xclmgmt", instance & 0xFF, in_class="xrt_mgmt"),),
        attributes={"VBNV": "xilinx_u250_gen3x16_base_4", "ready": "0x1"},
    )
    user = Function(
        f"{slot}.1",
        PciId(0x10EE, 0x5005, _PROCESSING, *board),
        driver="xocl",
        link=link,
        bars=(Bar(32 * _MIB, prefetchable=True), Bar(256 * _MIB, prefetchable=True)),
        roles=(DrmNodes(None, render),),
        attributes={"VBNV": "xilinx_u250_gen3x16_base_4", "ready": "0x1"},
    )
    return management, user


def pac_d5005(address: str, number: int) -> Function:
    """An Intel PAC D5005 (Stratix 10) under the kernel's DFL framework."""
    region = f"fpga_region/region{number}"
    return Function(
        address,
        PciId(0x8086, 0x0B2B, _PROCESSING, 0x8086, 0x138D, 0x01),
        driver="dfl-pci",
        link=LinkState(3, 16),
        bars=(Bar(512 << 10, prefetchable=True),),
        roles=(
            FpgaRegion(f"region{number}"),
            VendorNode(
                f"{region}/dfl-fme.{number}",
                "dfl",
                2 * number,
                attributes={"ports_num": 1, "bitstream_id": "0x0000040600000023"},
            ),
            VendorNode(
                f"{region}/dfl-port.{number}",
                "dfl",
                2 * number + 1,
                attributes={"afu_id": "9aeffe5f84570612c000c9660d824272"},
            ),
        ),
    )


def gaudi2(address: str, number: int) -> Function:
    """A Gaudi 2 under habanalabs."""
    return Function(
        address,
        PciId(0x1DA3, 0x1020, _PROCESSING, 0x1DA3, 0x1020, 0x01),
        driver="habanalabs",
        link=LinkState(4, 16),
        bars=(Bar(16 * _MIB, prefetchable=True), Bar(128 * _GIB, prefetchable=True)),
        roles=(AccelNodes(number, control=True),),
        attributes={"device_type": "GAUDI2", "status": "operational", "pci_addr": address},
    )
