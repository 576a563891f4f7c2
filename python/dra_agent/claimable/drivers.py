"""What a kernel driver that is bound to a function means for containers, by its name in /sys/bus/pci/drivers.

A driver that is not listed here is judged by what it made: a device node or an interface. Names are those of the
kernel's `struct pci_driver`, which are often not the names of modules.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple

from dra_agent.topology.model import DeviceKind

Meaning = Literal["passes-through", "reserves", "user-space", "unusable", "manages", "virtualizes", "other-platform"]
"""passes-through: it gives the whole function to a virtual machine or a driver in user space, through VFIO.

reserves: it holds the function for something else. user-space: it gives it to a program of the host, without an IOMMU.
unusable: it drives the device, but not for what claims ask of it. manages: it configures or flashes the card.
virtualizes: it divides the device for virtual machines. other-platform: it drives a device of a system on a chip, or of
the host of this virtual machine.
"""


class DriverFacts(NamedTuple):
    """One driver."""

    meaning: Meaning
    reason: str
    """Why containers get nothing of it, after the driver's name: "reserves it for a virtual machine"."""
    hint: str
    kinds: frozenset[DeviceKind] | None = None
    """The kinds that this is true for; None: all."""


_GPU = frozenset({DeviceKind.GPU})
_FPGA = frozenset({DeviceKind.FPGA})
_NVIDIA = "blacklist it and install NVIDIA's driver"
_VFIO = "bind it to vfio-pci if containers or virtual machines are to have it"

_DRIVERS = {
    # drivers/pci/pci-stub.c: it exists to keep other drivers away.
    "pci-stub": DriverFacts(
        "reserves",
        "keeps other drivers away from it",
        "unbind it, and look for pci-stub.ids on the kernel's command line; bind its driver or vfio-pci",
    ),
    # drivers/xen/xen-pciback: the name in /sys is "pciback".
    "pciback": DriverFacts(
        "reserves",
        "keeps it for a Xen guest",
        "give it back to this domain (xen-pciback.hide, xl pci-assignable-remove)",
    ),
    "xen-pciback": DriverFacts(
        "reserves",
        "keeps it for a Xen guest",
        "give it back to this domain (xen-pciback.hide, xl pci-assignable-remove)",
    ),
    # drivers/uio, and DPDK's igb_uio: the program that opens /dev/uioN can reach all memory of the host.
    "uio_pci_generic": DriverFacts("user-space", "gives it to programs without the protection of an IOMMU", _VFIO),
    "igb_uio": DriverFacts("user-space", "gives it to programs without the protection of an IOMMU", _VFIO),
    "nouveau": DriverFacts("unusable", "drives it, which CUDA cannot use", _NVIDIA, _GPU),
    # drivers/gpu/nova-core: the module's name is the driver's.
    "NovaCore": DriverFacts("unusable", "drives it, which has no interface for compute", _NVIDIA, _GPU),
    "nova_core": DriverFacts("unusable", "drives it, which has no interface for compute", _NVIDIA, _GPU),
    "nova-core": DriverFacts("unusable", "drives it, which has no interface for compute", _NVIDIA, _GPU),
    # The GPU of a Thor is a PCI function, with nodes in /dev/nvgpu where NVIDIA's other driver does not have it.
    "nvgpu": DriverFacts(
        "other-platform",
        "makes the nodes of a Tegra chip's GPU, which this agent does not support",
        "run its containers with NVIDIA's container toolkit (nvidia-ctk cdi generate --mode=csv)",
        _GPU,
    ),
    # WSL2, drivers/hv/dxgkrnl: one node for the GPUs of the Windows host, whose libraries come from there, too.
    "dxgkrnl": DriverFacts(
        "other-platform",
        "makes /dev/dxg for the GPUs of a Windows host, which this agent does not support",
        "give containers /dev/dxg and /usr/lib/wsl as WSL2's documentation describes",
        _GPU,
    ),
    "radeon": DriverFacts(
        "unusable",
        "drives it, which ROCm cannot use",
        "use amdgpu where it supports the GPU (amdgpu.si_support=1)",
        _GPU,
    ),
    # AMD's host driver of MxGPU, gim_shim/gim_drv.c.
    "gim": DriverFacts(
        "virtualizes", "divides it for virtual machines", "claim its virtual functions, or load amdgpu instead", _GPU
    ),
    # XRT, src/runtime_src/core/pcie/driver/linux/xocl/mgmtpf: flashing and reset of the whole card.
    "xclmgmt": DriverFacts("manages", "configures the whole card through it", "claim the card's user function", _FPGA),
    "xclmgmt_drv": DriverFacts(
        "manages", "configures the whole card through it", "claim the card's user function", _FPGA
    ),
    "amdxdna_mgmt": DriverFacts(
        "manages", "configures the whole card through it", "claim the card's user function", _FPGA
    ),
}

_PASSES_THROUGH = re.compile(r"vfio-pci|.+[-_]vfio[-_]pci")
"""vfio-pci and the vendors' variants of it: mlx5_vfio_pci, nvgrace_gpu_vfio_pci, xe-vfio-pci."""
_VFIO_FACTS = DriverFacts("passes-through", "gives the whole function away", "")

CONSOLE_VENDORS = frozenset({"0x1af4", "0x15ad"})
"""virtio-gpu and VMware's: their drivers make a render node with and without a GPU behind it."""

DISPLAY_VENDORS = frozenset({"0x1a03", "0x102b", "0x19e5", "0x1234", "0x1013"})
"""ASPEED, Matrox, Huawei (of management controllers), QEMU, Cirrus (of virtual machines): displays without compute."""


def passes_through(driver: str) -> bool:
    """Return True for vfio-pci and the vendors' variants of it."""
    return _PASSES_THROUGH.fullmatch(driver) is not None


@lru_cache(256)
def driver_facts(driver: str, kind: DeviceKind) -> DriverFacts | None:
    """Return what a driver means for a function of this kind; None if it is judged by what it made."""
    if passes_through(driver):
        return _VFIO_FACTS
    known = _DRIVERS.get(driver)
    return known if known is not None and (known.kinds is None or kind in known.kinds) else None
