"""FPGA cards and accelerators other than GPUs."""

from __future__ import annotations

from dra_simulate.machine import Bar, Function, LinkState, PciId
from dra_simulate.parts.bridges import guid
from dra_simulate.roles.drm import AccelNodes, DrmNodes
from dra_simulate.roles.network import RdmaDevice
from dra_simulate.roles.vendor import FpgaRegion, VendorNode, VirtualDevice

_PROCESSING = 0x120000
_MIB, _GIB = 1 << 20, 1 << 30


def alveo_u250(slot: str, instance: int, render: int) -> tuple[Function, Function]:
    """An Alveo U250 under XRT: the management function and the user function ("0000:b3:00")."""
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


def alveo_v80(slot: str, number: int, minors: tuple[int, int]) -> tuple[Function, ...]:
    """An Alveo V80 under the SLASH drivers: management (AMI), DMA engine and registers ("0000:81:00").

    `minors`: of the two misc devices. After Xilinx/SLASH, driver/slash_config.h, and Xilinx/AVED, sw/AMI.
    """
    link, board = LinkState(5, 8), (0x10EE, 0x000E)

    def misc(function: int, name: str, minor: int) -> VendorNode:
        folder = f"misc/{name}_{slot}.{function}"
        return VendorNode(folder, "misc", minor, in_class="misc", node=f"{name}{number}")

    return (
        Function(
            f"{slot}.0",
            PciId(0x10EE, 0x50B4, _PROCESSING, *board),
            driver="ami",
            link=link,
            bars=(Bar(256 * _MIB, prefetchable=True),),
            roles=(VirtualDevice(f"ami{number}", "ami", "ami", number),),
        ),
        Function(
            f"{slot}.1",
            PciId(0x10EE, 0x50B5, _PROCESSING, *board),
            driver="slash_qdma",
            link=link,
            bars=(Bar(512 << 10, prefetchable=True),),
            roles=(misc(1, "slash_qdma_ctl", minors[0]),),
        ),
        Function(
            f"{slot}.2",
            PciId(0x10EE, 0x50B6, _PROCESSING, *board),
            driver="slash_ctl",
            link=link,
            bars=(Bar(256 * _MIB, prefetchable=True),),
            roles=(misc(2, "slash_ctl", minors[1]),),
        ),
    )


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


def gaudi3(address: str, number: int, *, machine: str) -> Function:
    """A Gaudi 3 module (HL-325L) under habanalabs, with the RDMA device of its scale-out ports."""
    return Function(
        address,
        PciId(0x1DA3, 0x1060, _PROCESSING, 0x1DA3, 0x1060, 0x01),
        driver="habanalabs",
        link=LinkState(5, 16),
        bars=(Bar(16 * _MIB, prefetchable=True), Bar(128 * _GIB, prefetchable=True)),
        roles=(
            AccelNodes(number, control=True),
            RdmaDevice(f"hbl_{number}", guid(machine, 64 + number), number, own_protocol=True, hca_type="", board=""),
        ),
        attributes={
            "device_type": "GAUDI3",
            "status": "operational",
            "pci_addr": address,
            "module_id": number,
        },
    )
