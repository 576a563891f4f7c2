"""Product names and fixed facts of devices, by PCI id, for devices with a driver that does not report them.

A device that is not listed has no `productName`; nothing is guessed from similar ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dra_agent.topology.model import PciFunction


@dataclass(frozen=True, slots=True)
class FpgaCard:
    """An FPGA card: its name and the size of its FPGA."""

    name: str
    logic_cells: int | None = None
    """System logic cells (Xilinx data sheets DS962, DS963, DS965, DS978) or logic elements (Intel)."""


_PRODUCTS = {
    # AMD, as amdgpu.ids and the ROCm documentation call them.
    "1002:738c": "AMD Instinct MI100",
    "1002:7408": "AMD Instinct MI250X",
    "1002:740c": "AMD Instinct MI250X/MI250",
    "1002:740f": "AMD Instinct MI210",
    "1002:74a0": "AMD Instinct MI300A",
    "1002:74a1": "AMD Instinct MI300X",
    "1002:74a2": "AMD Instinct MI308X",
    "1002:74a5": "AMD Instinct MI325X",
    "1002:74a9": "AMD Instinct MI300X HF",
    "1002:74b5": "AMD Instinct MI300X VF",
    "1002:75a0": "AMD Instinct MI350X",
    "1002:75a3": "AMD Instinct MI355X",
    "1002:744c": "AMD Radeon RX 7900 XTX/XT/GRE/M",
    "1002:7448": "AMD Radeon Pro W7900",
    # Intel, as pci.ids (2026.08.22) and Intel's compute runtime (shared/source/dll/devices/devices_base.inl) call them.
    "8086:0b69": "Intel Data Center GPU Max 1450",
    "8086:0bd5": "Intel Data Center GPU Max 1550",
    "8086:0bd6": "Intel Data Center GPU Max 1550",
    "8086:0bd7": "Intel Data Center GPU Max 1350",
    "8086:0bd8": "Intel Data Center GPU Max 1350",
    "8086:0bd9": "Intel Data Center GPU Max 1100",
    "8086:0bda": "Intel Data Center GPU Max 1100",
    "8086:0bdb": "Intel Data Center GPU Max 1100",
    "8086:56a0": "Intel Arc A770",
    "8086:56a1": "Intel Arc A750",
    "8086:56a2": "Intel Arc A580",
    "8086:56a5": "Intel Arc A380",
    "8086:56a6": "Intel Arc A310",
    "8086:56b1": "Intel Arc Pro A40/A50",
    "8086:56b3": "Intel Arc Pro A60",
    "8086:56c0": "Intel Data Center GPU Flex 170",
    "8086:56c1": "Intel Data Center GPU Flex 140",
    "8086:56c2": "Intel Data Center GPU Flex 170V",
    "8086:e20b": "Intel Arc B580",
    "8086:e20c": "Intel Arc B570",
    "8086:e211": "Intel Arc Pro B60",
    "8086:e212": "Intel Arc Pro B50",
    "8086:e222": "Intel Arc Pro B65",
    "8086:e223": "Intel Arc Pro B70",
    # Network adapters.
    "15b3:1013": "ConnectX-4",
    "15b3:1015": "ConnectX-4 Lx",
    "15b3:1017": "ConnectX-5",
    "15b3:1019": "ConnectX-5 Ex",
    "15b3:101b": "ConnectX-6",
    "15b3:101d": "ConnectX-6 Dx",
    "15b3:101e": "ConnectX Family mlx5Gen Virtual Function",
    "15b3:101f": "ConnectX-6 Lx",
    "15b3:1021": "ConnectX-7",
    "15b3:1023": "ConnectX-8",
    "15b3:1025": "ConnectX-9",
    "15b3:a2d2": "BlueField integrated ConnectX-5",
    "15b3:a2d6": "BlueField-2 integrated ConnectX-6 Dx",
    "15b3:a2d9": "BlueField-3 Lx integrated ConnectX-7",
    "15b3:a2dc": "BlueField-3 integrated ConnectX-7",
    "15b3:a2df": "BlueField-4 integrated network controller",
    "8086:1521": "I350 Gigabit Network Connection",
    "8086:1572": "Ethernet Controller X710",
    "8086:1583": "Ethernet Controller XL710",
    "8086:1592": "Ethernet Controller E810-C",
    "8086:1593": "Ethernet Controller E810-C for SFP",
    "8086:1889": "Ethernet Adaptive Virtual Function",
    "8086:37d2": "Ethernet Connection X722 for 10GBASE-T",
    "14e4:1750": "BCM57508 NetXtreme-E",
    "14e4:1760": "BCM57608 NetXtreme-E",
    "1d0f:ec20": "Elastic Network Adapter",
    "1d0f:efa0": "Elastic Fabric Adapter",
    "1d0f:efa1": "Elastic Fabric Adapter",
    "1d0f:efa2": "Elastic Fabric Adapter",
    "1d0f:efa3": "Elastic Fabric Adapter",
    "1d0f:efa4": "Elastic Fabric Adapter",
    "1dd8:1002": "DSC Ethernet Controller",
    "1af4:1000": "Virtio network device",
    "1af4:1041": "Virtio network device",
    # Other accelerators, as pci.ids (2026.08.22) and their drivers call them; Gaudi 3 cards have other ids.
    "1d0f:7064": "AWS Inferentia",
    "1d0f:7164": "AWS Trainium",
    "1d0f:7264": "AWS Inferentia2",
    "1d0f:7364": "AWS Trainium2",
    "1d0f:7564": "AWS Trainium3",
    "1d0f:7565": "AWS Trainium3",
    "1da3:0001": "Goya HL-1000",
    "1da3:1000": "Gaudi HL-2000",
    "1da3:1020": "Gaudi2 HL-2080",
    "1da3:1060": "Gaudi3",
    "1da3:1063": "Gaudi3 PCIe",
    # Google's JAX, jax/_src/hardware_utils.py; v2 and v3 share an id.
    "1ae0:005e": "TPU v4",
    "1ae0:0062": "TPU v5p",
    "1ae0:0063": "TPU v5e",
    "1ae0:006f": "TPU v6e",
    "1ae0:0076": "TPU v7",
    "1bcf:001c": "Vector Engine 1.0",
    "17cb:a100": "Cloud AI 100",
    "1e52:401e": "Wormhole",
    "1e52:b140": "Blackhole",
}

_FPGA_CARDS = {
    # The user function; the card's management function is not claimable.
    "10ee:5001": FpgaCard("Alveo U200", 2_586_150),
    "10ee:5005": FpgaCard("Alveo U250", 3_780_000),
    "10ee:500d": FpgaCard("Alveo U280", 2_852_000),
    "10ee:5021": FpgaCard("Alveo U50", 1_907_000),
    "10ee:505d": FpgaCard("Alveo U55C", 2_852_000),
    # PF1 is the DMA engine of the SLASH and AVED designs; PF2 has the registers (Xilinx/SLASH, driver/slash_config.h).
    "10ee:50b5": FpgaCard("Alveo V80"),
    "8086:09c4": FpgaCard("Intel Programmable Acceleration Card with Arria 10 GX", 1_150_000),
    "8086:0b2b": FpgaCard("Intel FPGA Programmable Acceleration Card D5005", 2_753_000),
    "8086:0b30": FpgaCard("Intel FPGA Programmable Acceleration Card N3000", 1_150_000),
}

_XRT_MANAGEMENT = (
    "4a47 4a87 4b47 4b87 5000 5004 5008 500c 5020 5028 5030 5034 503c 5044 5048 504e 5050 5058 505c 5060 "
    "506c 5074 5078 5094 5098 513c 6098 684f 688f 694f 6987 698f 6a4f 6a8f 6a9f 6b0f 6e4f 6e8f 788f 798f "
    "888f 898f a883 a983 d000 d004 d008 d00c d020 d030 d03c d04c e098 e987 eb10 f987"
)
"""XOCL_MGMT_PCI_IDS of XRT's devices.h: what xclmgmt drives, also cards with their factory image."""
# Of the SLASH and AVED designs (Xilinx/AVED, sw/AMI), of AWS F1 (XRT's awsmgmt; F1_MBOX_DEVICE_ID in aws-fpga,
# fpga_common.h), and of AWS F2 (F2_MBOX_DEVICE_ID).
_FPGA_MANAGEMENT = frozenset(
    {"10ee:50b4", "1d0f:1040", "1d0f:1041", "1d0f:9248", *(f"10ee:{device}" for device in _XRT_MANAGEMENT.split())}
)

# Functions of a card that are used together with another one of it, by the id of that one.
_FPGA_COMPANIONS = {"10ee:50b6": "10ee:50b5"}

# Boards that are sold with one amount of memory only; 2^30 bytes of one GPU, as in Intel's product specifications.
# The A770 (8 or 16) is not one of them. A driver that reports the amount reports up to one percent less.
_BOARD_MEMORY_GIB = {
    "8086:0bd5": 128,
    "8086:0bda": 48,
    "8086:0bdb": 48,
    "8086:56a1": 8,
    "8086:56a5": 6,
    "8086:56c0": 16,
    "8086:56c1": 6,
    "8086:e20b": 12,
    "8086:e20c": 10,
    "8086:e211": 24,
    "8086:e212": 16,
    "8086:e222": 32,
    "8086:e223": 32,
    # aws-neuron-driver, v2/address_map.h and v3/address_map.h: 2 stacks of 16, and 4 stacks of 24.
    "1d0f:7164": 32,
    "1d0f:7264": 32,
    "1d0f:7364": 96,
}


def product_of(function: PciFunction) -> str | None:
    """Return a device's product name."""
    card = _FPGA_CARDS.get(_key(function))
    return card.name if card is not None else _PRODUCTS.get(_key(function))


def fpga_card_of(function: PciFunction) -> FpgaCard | None:
    """Return the description of an FPGA card."""
    return _FPGA_CARDS.get(_key(function))


def is_fpga_management(function: PciFunction) -> bool:
    """Return True for the management function of a card, which applications do not use."""
    return _key(function) in _FPGA_MANAGEMENT


def is_fpga_companion(function: PciFunction) -> bool:
    """Return True if this function belongs to the device of another function of its card."""
    return _key(function) in _FPGA_COMPANIONS


def fpga_companions(function: PciFunction, functions: Sequence[PciFunction]) -> list[PciFunction]:
    """Return the functions of the same card that are used together with this one."""
    slot = function.pci_address.rpartition(".")[0]
    return [
        other
        for other in functions
        if other.pci_address.rpartition(".")[0] == slot and _FPGA_COMPANIONS.get(_key(other)) == _key(function)
    ]


def board_memory_of(function: PciFunction) -> int | None:
    """Return the memory in bytes of a board that is sold with one memory size."""
    gib = _BOARD_MEMORY_GIB.get(_key(function))
    return None if gib is None else gib << 30


def _key(function: PciFunction) -> str:
    return f"{function.vendor_id[2:]}:{function.device_id[2:]}"
