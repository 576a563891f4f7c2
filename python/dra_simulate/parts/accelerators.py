"""FPGA cards and accelerators other than GPUs."""

from __future__ import annotations

from dataclasses import replace

from dra_simulate.machine import Bar, Function, LinkState, PciId, Sriov
from dra_simulate.parts.bridges import guid
from dra_simulate.roles.drm import AccelNodes, DrmNodes
from dra_simulate.roles.network import RdmaDevice
from dra_simulate.roles.vendor import FpgaRegion, UioDevice, VendorNode, VirtualDevice

_PROCESSING, _MEMORY, _UNASSIGNED = 0x120000, 0x058000, 0xFF0000
_GOOGLE, _AMAZON = 0x1AE0, 0x1D0F
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


def xdna(address: str, number: int) -> Function:
    """The NPU of a Strix Halo under amdxdna: class 1180, signal processing, and a node as accelerators have."""
    return Function(
        address,
        PciId(0x1022, 0x17F0, 0x118000, 0x1022, 0x17F0, 0x11),
        driver="amdxdna",
        bars=(Bar(512 << 10, prefetchable=True),),
        roles=(AccelNodes(number),),
        attributes={"device_type": 0, "vbnv": "RyzenAI-npu5"},
    )


def coral(address: str, number: int) -> Function:
    """A Coral Edge TPU under gasket's apex; the kernel corrects its class to that of a system peripheral."""
    return Function(
        address,
        PciId(0x1AC1, 0x089A, 0x088000, 0x1AC1, 0x089A),
        driver="apex",
        link=LinkState(2, 1),
        bars=(Bar(16 << 10, prefetchable=True), Bar(1 * _MIB, prefetchable=True)),
        roles=(VendorNode(f"apex/apex_{number}", "apex", number, in_class="apex"),),
    )


def hailo(address: str, number: int) -> Function:
    """A Hailo-8 under hailo_pci, with the class of a coprocessor."""
    return Function(
        address,
        PciId(0x1E60, 0x2864, 0x0B4000, 0x1E60, 0x2864, 0x01),
        driver="hailo",
        link=LinkState(3, 4),
        bars=(Bar(16 << 10, prefetchable=True), Bar(4 << 10, prefetchable=True)),
        roles=(VendorNode(f"hailo_chardev/hailo{number}", "hailo", number, in_class="hailo_chardev"),),
    )


def tpu_v4(address: str, number: int) -> Function:
    """A TPU v4 under Google's driver, whose class is named as the kernel's accel class, and whose nodes are in /dev."""
    return Function(
        address,
        PciId(_GOOGLE, 0x005E, _UNASSIGNED, _GOOGLE, 0x005E),
        driver="tpu_v4",
        link=LinkState(3, 16),
        bars=(Bar(64 * _MIB, prefetchable=True),),
        roles=(VendorNode(f"accel/accel{number}", "accel", number, in_class="accel"),),
    )


def tpu_v5e(address: str) -> Function:
    """A TPU v5e as a machine starts; Google's images bind it to vfio-pci, which is how applications use it."""
    return Function(
        address,
        PciId(_GOOGLE, 0x0063, _UNASSIGNED, _GOOGLE, 0x0063),
        link=LinkState(4, 16),
        bars=(Bar(64 * _MIB, prefetchable=True),),
    )


def aws_f2(slot: str) -> tuple[Function, Function]:
    """An FPGA of AWS F2 ("0000:9f:00"): its application, which programs map without a driver, and its management."""
    application = Function(
        f"{slot}.0",
        PciId(_AMAZON, 0xF010, _MEMORY, _AMAZON, 0x0103),
        bars=(Bar(64 * _MIB), Bar(128 * _GIB, prefetchable=True)),
    )
    management = Function(f"{slot}.1", PciId(_AMAZON, 0x9248, _MEMORY, _AMAZON, 0x9248), bars=(Bar(16 << 10),))
    return application, management


def qat_of_vendor(address: str, first: int, bundles: int = 2) -> Function:
    """A QuickAssist under the driver of Intel's package, which gives programs its bundles: /dev/uioN from `first`."""
    roles = tuple(UioDevice(first + bundle, "4xxx") for bundle in range(bundles))
    return replace(qat(address), roles=(*qat(address).roles, *roles))


def hailo_4_22(address: str, number: int) -> Function:
    """The same card under hailo_pci 4.22 and earlier, whose nodes have no parent, and the PCI address as attribute."""
    role = VirtualDevice(
        f"hailo{number}",
        "hailo_chardev",
        "hailo",
        number,
        attributes={"board_location": address, "device_id": "1e60:2864"},
    )
    return replace(hailo(address, number), roles=(role,))


def memryx(address: str, number: int) -> Function:
    """A MemryX MX3, whose nodes have neither a parent nor an address."""
    return Function(
        address,
        PciId(0x1FE9, 0x0100, _PROCESSING, 0x1FE9, 0x0000),
        driver="memx_pcie_ai_chip",
        link=LinkState(3, 2),
        bars=(Bar(16 * _MIB),),
        roles=(VirtualDevice(f"memx{number}", "memx_cdev", "memx", number),),
    )


def hygon(address: str, card: int) -> Function:
    """A Hygon K100 under hydcu: DRM nodes of its own, and two nodes for all of them."""
    return Function(
        address,
        PciId(0x1D94, 0x62B7, 0x0B4000, 0x1D94, 0x62B7, 0x01),
        driver="hydcu",
        link=LinkState(4, 16),
        bars=(Bar(64 * _GIB, prefetchable=True),),
        roles=(
            DrmNodes(card, 128 + card),
            VirtualDevice("kfd", "kfd", "kfd", 0),
            VirtualDevice("mkfd", "mkfd", "mkfd", 0),
        ),
    )


def metax(address: str, card: int) -> Function:
    """A MetaX C500: DRM nodes of its own, and one node for all of them."""
    return Function(
        address,
        PciId(0x9999, 0x4001, 0x038000, 0x9999, 0x4001),
        driver="metax",
        link=LinkState(5, 16),
        bars=(Bar(64 * _GIB, prefetchable=True),),
        roles=(DrmNodes(card, 128 + card), VirtualDevice("mxcd", "mxcd", "mxcd", 0)),
    )


def moore_threads(address: str, card: int) -> Function:
    """An MTT S4000 under mtgpu, whose node beside those of DRM is assumed to have no parent."""
    return Function(
        address,
        PciId(0x1ED5, 0x0323, 0x030200, 0x1ED5, 0x0323),
        driver="mtgpu",
        link=LinkState(5, 16),
        bars=(Bar(64 * _GIB, prefetchable=True),),
        roles=(DrmNodes(card, 128 + card), VirtualDevice(f"mtgpu.{card}", "mtgpu", "mtgpu", card)),
    )


def pac_n3000_divided(address: str, number: int) -> Function:
    """An Intel PAC N3000 whose port was released to a virtual function: its own has the management engine only."""
    virtual = Function(
        f"{address.rpartition('.')[0]}.1",
        PciId(0x8086, 0x0B31, _PROCESSING, 0x8086, 0x0000),
        driver="dfl-pci",
        bars=(Bar(512 << 10, prefetchable=True),),
        roles=(VendorNode(f"fpga_region/region{number + 1}/dfl-port.{number}", "dfl", 2 * number + 1),),
    )
    return Function(
        address,
        PciId(0x8086, 0x0B30, _PROCESSING, 0x8086, 0x0000),
        driver="dfl-pci",
        link=LinkState(3, 16),
        bars=(Bar(512 << 10, prefetchable=True),),
        roles=(VendorNode(f"fpga_region/region{number}/dfl-fme.{number}", "dfl", 2 * number),),
        sriov=Sriov(1, 0x0B31, functions=(virtual,)),
    )


def qat(address: str, *, virtual: int = 0) -> Function:
    """A QuickAssist 4xxx, which the kernel uses: one control node for all, and nothing of a single device.

    `virtual` functions have no driver.
    """
    stem = address.rpartition(".")[0]
    functions = tuple(
        Function(f"{stem}.{number}", PciId(0x8086, 0x4941, 0x0B4000, 0x8086, 0x0000, 0x40))
        for number in range(1, virtual + 1)
    )
    return Function(
        address,
        PciId(0x8086, 0x4940, 0x0B4000, 0x8086, 0x0000, 0x40),
        driver="4xxx",
        bars=(Bar(256 << 10, prefetchable=True), Bar(4 * _MIB, prefetchable=True)),
        roles=(VirtualDevice("qat_adf_ctl", "qat_adf_ctl", "qat_adf_ctl", 0),),
        sriov=Sriov(16, 0x4941, functions=functions),
    )
