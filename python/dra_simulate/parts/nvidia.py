"""NVIDIA GPUs and NVSwitches as PCI functions."""

from __future__ import annotations

from dataclasses import dataclass

from dra_simulate.machine import Bar, Function, LinkState, PciId
from dra_simulate.mig_models import (
    A30,
    A100_40GB,
    B200,
    GB200,
    GH200_144GB,
    H100_NVL,
    H100_PCIE,
    RTX_PRO_6000,
)
from dra_simulate.models import A100_PCIE, GB10, H100_SXM, H200_SXM, L40S, T4, V100_SXM3, GpuModel
from dra_simulate.parts.bridges import serial_number, uuid
from dra_simulate.roles.nvidia import NvidiaGpu, NvSwitch

_NVIDIA = 0x10DE
_3D = 0x030200
_VGA = 0x030000
_MIB = 1 << 20

ONE_HOST_FABRIC = ("00000000-0000-0000-0000-000000000000", 0)
"""Fabric state of GPUs with NVSwitches that connect no other host: registered, in a cluster without a name."""


@dataclass(frozen=True, slots=True)
class _Board:
    device: int
    subsystem: int
    link: LinkState
    model: GpuModel
    class_code: int = _3D


_BOARDS = {
    model.name: _Board(device, subsystem, link, model)
    for model, device, subsystem, link in (
        (H100_SXM, 0x2330, 0x16C1, LinkState(5, 16)),
        (H200_SXM, 0x2335, 0x18BE, LinkState(5, 16)),
        (A100_PCIE, 0x20B5, 0x1533, LinkState(4, 16)),
        (L40S, 0x26B9, 0x1851, LinkState(4, 16)),
        (T4, 0x1EB8, 0x12A2, LinkState(3, 16)),
        # Device ids: mig-parted, deployments/systemd/config-default.yaml. Subsystem ids are not verified.
        (A30, 0x20B7, 0x1532, LinkState(4, 16)),
        (A100_40GB, 0x20B0, 0x134F, LinkState(4, 16)),
        (H100_NVL, 0x2321, 0x1839, LinkState(5, 16)),
        (H100_PCIE, 0x2331, 0x1626, LinkState(5, 16)),
        (GH200_144GB, 0x2348, 0x18D2, LinkState(5, 16)),
        (B200, 0x2901, 0x1999, LinkState(5, 16)),
        (GB200, 0x2941, 0x2046, LinkState(5, 16)),
        (RTX_PRO_6000, 0x2BB5, 0x204E, LinkState(5, 16)),
        (V100_SXM3, 0x1DB8, 0x131D, LinkState(3, 16)),
    )
}
_BOARDS[GB10.name] = _Board(0x2E12, 0x0000, LinkState(5, 16), GB10, _VGA)


def gpu(
    address: str,
    model: GpuModel,
    minor: int,
    *,
    machine: str,
    nvlinks: tuple[str, ...] = (),
    fabric: tuple[str, int] | None = None,
    numa_node: int | None = None,
    virtualization: int = 0,
    link: LinkState | None = None,
) -> Function:
    """A GPU; its UUID and serial number follow from the machine's name and the minor.

    `link`: of the slot, if it differs from the model's.
    """
    board = _BOARDS[model.name]
    role = NvidiaGpu(
        minor=minor,
        uuid=f"GPU-{uuid(machine, 'gpu', minor)}",
        serial=serial_number(machine, minor),
        model=model,
        nvlinks=nvlinks,
        fabric=fabric,
        virtualization=virtualization,
    )
    return Function(
        address,
        PciId(_NVIDIA, board.device, board.class_code, _NVIDIA, board.subsystem, 0xA1),
        driver="nvidia",
        link=link or board.link,
        numa_node=numa_node,
        bars=(
            Bar(16 * _MIB),
            *([Bar(model.bar1_bytes, prefetchable=True)] if model.bar1_bytes else ()),
            Bar(32 * _MIB, prefetchable=True),
        ),
        roles=(role,),
    )


def nvswitch(address: str, number: int) -> Function:
    """A third-generation NVSwitch, which PCIe reaches over two lanes."""
    return _nvswitch(address, number, PciId(_NVIDIA, 0x22A3, 0x068000, _NVIDIA, 0x1796, 0xA1), LinkState(2, 2, 4, 2))


def first_nvswitch(address: str, number: int) -> Function:
    """A first-generation NVSwitch, as in a DGX-2."""
    return _nvswitch(address, number, PciId(_NVIDIA, 0x1AC2, 0x068000, revision=0xA1), LinkState(2, 2))


def _nvswitch(address: str, number: int, id: PciId, link: LinkState) -> Function:
    return Function(
        address,
        id,
        driver="nvidia-nvswitch",
        link=link,
        bars=(Bar(32 * _MIB),),
        roles=(NvSwitch(number),),
    )
