"""What a kernel driver that is bound to a function means for containers, by its name in /sys/bus/pci/drivers.

A driver that is not listed here is judged by what it made: a device node or an interface. Names are those of the
kernel's `struct pci_driver`, which are often not the names of modules.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from dra_agent.topology.model import DeviceKind

Meaning = Literal["reserves", "unusable", "manages", "virtualizes", "other-platform"]
"""reserves: it holds the function for something else.

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


NEURON_DRIVER = "neuron-driver"
"""AWS Neuron; its module is `neuron`, and its nodes have no place in /sys."""
RDMA_WITHOUT_INTERFACE = frozenset({"efa", "erdma", "vmw_pvrdma"})
"""Their functions have RDMA and never a network interface. AWS EFA needs none; Alibaba's and VMware's, which report
Ethernet, use that of another function: of the virtio adapter with the same MAC (erdma_netdev_event), of the vmxnet3 at
function 0 of the slot (pvrdma_pci_probe).
"""
TEGRA_HINT = "run its containers with NVIDIA's container toolkit (nvidia-ctk cdi generate --mode=csv)"

_GPU = frozenset({DeviceKind.GPU})
_FPGA = frozenset({DeviceKind.FPGA})
_INSTALL_NVIDIA = "blacklist it and install NVIDIA's driver"
_XEN = DriverFacts(
    "reserves",
    "keeps it for a Xen guest",
    "return it to this domain (xen-pciback.hide, xl pci-assignable-remove)",
)
_NOVA = DriverFacts("unusable", "drives it, which has no interface for compute", _INSTALL_NVIDIA, _GPU)
_CARD = DriverFacts("manages", "configures the whole card through it", "claim the card's user function", _FPGA)

_DRIVERS = {
    # drivers/pci/pci-stub.c: it exists to keep other drivers away.
    "pci-stub": DriverFacts(
        "reserves",
        "keeps other drivers away from it",
        "unbind it, and look for pci-stub.ids on the kernel's command line; bind its driver or vfio-pci",
    ),
    # drivers/xen/xen-pciback: the name in /sys is "pciback".
    "pciback": _XEN,
    "xen-pciback": _XEN,
    "nouveau": DriverFacts("unusable", "drives it, which CUDA cannot use", _INSTALL_NVIDIA, _GPU),
    # drivers/gpu/nova-core: the module's name is the driver's.
    "NovaCore": _NOVA,
    "nova_core": _NOVA,
    "nova-core": _NOVA,
    # The GPU of a Thor is a PCI function, with nodes in /dev/nvgpu where NVIDIA's other driver does not have it.
    "nvgpu": DriverFacts(
        "other-platform",
        "makes the nodes of a Tegra chip's GPU, which this agent does not support",
        TEGRA_HINT,
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
    "xclmgmt": _CARD,
    "xclmgmt_drv": _CARD,
    "amdxdna_mgmt": _CARD,
}

CONSOLE_VENDORS = frozenset({"0x1af4", "0x15ad"})
"""virtio-gpu and VMware's: their drivers make a render node with and without a GPU behind it."""

DISPLAY_VENDORS = frozenset({"0x1a03", "0x102b", "0x19e5", "0x1234", "0x1013"})
"""ASPEED, Matrox, Huawei (of management controllers), QEMU, Cirrus (of virtual machines): displays without compute."""


def driver_facts(driver: str, kind: DeviceKind) -> DriverFacts | None:
    """Return what a driver means for a function of this kind; None if it is judged by what it made."""
    known = _DRIVERS.get(driver)
    return known if known is not None and (known.kinds is None or kind in known.kinds) else None
