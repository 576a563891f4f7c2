"""NVIDIA GPUs and NVSwitches: device nodes and /proc/driver/nvidia. Their NVML state is in `simulate.nvml_install`."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

from dra_simulate.machine import Machine, RoleContext
from dra_simulate.models import GpuModel
from dra_simulate.nvml import Access
from dra_simulate.system import MAJORS
from dra_simulate.tree import Tree

_CONTROL_MINOR = 255
_MODESET_MINOR = 254


FAR_SWITCH = "far"
"""In place of the address of an NVSwitch that is in another chassis."""


@dataclass(frozen=True, slots=True)
class NvidiaGpu:
    """A GPU under NVIDIA's driver: the minor of its /dev/nvidiaN, its product, and its NVLink peers.

    `nvlinks` names the PCI address at the other end of each active link: an NVSwitch's, another GPU's, or FAR_SWITCH.
    """

    minor: int
    uuid: str
    serial: str
    model: GpuModel
    nvlinks: tuple[str, ...] = ()
    fabric: tuple[str, int] | None = None
    """Cluster UUID and clique of an NVLink fabric."""
    virtualization: int = 0
    """As NVML numbers it: 0 bare metal, 1 passed through, 2 a vGPU in its guest."""

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add the node, and the driver's folder of the GPU below /proc/driver/nvidia/gpus."""
        address = site.function.address
        _node(site.machine, tree, f"nvidia{self.minor}", "nvidia", self.minor)
        tree.file(
            f"proc/driver/nvidia/gpus/{address}/information",
            f"Model: \t\t {self.model.name}\n"
            f"IRQ:   \t\t {64 + self.minor}\n"
            f"GPU UUID: \t {self.uuid}\n"
            f"Video BIOS: \t {self.model.vbios}\n"
            "Bus Type: \t PCIe\n"
            "DMA Size: \t 52 bits\n"
            "DMA Mask: \t 0xfffffffffffff\n"
            f"Bus Location: \t {address}\n"
            f"Device Minor: \t {self.minor}\n"
            f"GPU Firmware: \t {site.machine.nvidia.version if site.machine.nvidia else 'N/A'}\n"
            "GPU Excluded:\t No",
        )
        tree.file(f"proc/driver/nvidia/gpus/{address}/registry", 'Binary: ""')


@dataclass(frozen=True, slots=True)
class NvSwitch:
    """An NVSwitch of the baseboard."""

    number: int

    def plan(self, site: RoleContext, tree: Tree) -> None:
        """Add its device node and folder below /proc."""
        _node(site.machine, tree, f"nvidia-nvswitch{self.number}", "nvidia-nvswitch", self.number)
        _node(site.machine, tree, "nvidia-nvswitchctl", "nvidia-nvswitch", _CONTROL_MINOR)
        tree.file(
            f"proc/driver/nvidia-nvswitch/devices/{site.function.address}/information",
            f"Bus Location: \t {site.function.address}",
        )


def plan(machine: Machine, tree: Tree) -> None:
    """Add the driver's entries per host: its version and the control nodes."""
    if machine.nvidia is None:
        return
    flavour = "Open Kernel Module" if machine.nvidia.open_kernel_modules else "Kernel Module"
    tree.file(
        "proc/driver/nvidia/version",
        f"NVRM version: NVIDIA UNIX {flavour} for x86_64  {machine.nvidia.version}  Release Build  (builder@host)\n"
        "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)",
    )
    tree.file(
        "proc/driver/nvidia/params", "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438"
    )
    tree.directory("proc/driver/nvidia/gpus")
    tree.file("sys/module/nvidia/version", machine.nvidia.version)
    _node(machine, tree, "nvidiactl", "nvidia", _CONTROL_MINOR)
    _node(machine, tree, "nvidia-modeset", "nvidia", _MODESET_MINOR)
    _node(machine, tree, "nvidia-uvm", "nvidia-uvm", 0)
    _node(machine, tree, "nvidia-uvm-tools", "nvidia-uvm", 1)


def plan_capabilities(machine: Machine, access: Access, tree: Tree) -> None:
    """Add the MIG capabilities: the minors of all, and the entries that processes with that access see.

    File modes follow the driver (open-gpu-kernel-modules 595.45.04, src/nvidia/arch/nvalloc/unix/src/os.c).
    """
    if machine.nvidia is None:
        return
    gpus = [role.minor for _, role in machine.with_role(NvidiaGpu)]
    tree.file("proc/driver/nvidia-caps/mig-minors", _mig_minors(max(gpus, default=0)))
    for minor, capability, mode in ((1, "config", 0o400), (2, "monitor", 0o444)):
        if access.config if capability == "config" else access.monitor:
            tree.file(
                f"proc/driver/nvidia/capabilities/mig/{capability}",
                f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1",
            )
            _node(machine, tree, f"nvidia-caps/nvidia-cap{minor}", "nvidia-caps", minor, mode)
    for minor in gpus if access.instances else ():
        tree.directory(f"proc/driver/nvidia/capabilities/gpu{minor}")


def _node(machine: Machine, tree: Tree, name: str, major: str, minor: int, mode: int = 0o666) -> None:
    linked = machine.nvidia is not None and machine.nvidia.has_links
    tree.node(f"dev/{name}", MAJORS[major], minor, mode, linked=linked)


@cache
def _mig_minors(highest: int) -> str:
    """Minors of all capabilities, as the driver numbers them (kernel-open/nvidia/nv-caps.c: 15 instances of 8)."""
    lines = ["config 1", "monitor 2"]
    number = 3
    for gpu, instance in itertools.product(range(highest + 1), range(15)):
        for name in ("access", *(f"ci{compute}/access" for compute in range(8))):
            lines.append(f"gpu{gpu}/gi{instance}/{name} {number}")
            number += 1
    return "\n".join(lines)
