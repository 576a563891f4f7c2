"""The GPU of a Tegra SoC: a platform device, although NVIDIA's driver makes the nodes of a PCI GPU.

Sources: NVIDIA/k8s-device-plugin#1963, NVIDIA/go-nvlib (pkg/nvlib/info).
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_simulate.machine import Machine
from dra_simulate.system import MAJORS
from dra_simulate.tree import Tree

_CONTROL_MINOR = 255


@dataclass(frozen=True, slots=True)
class TegraGpu:
    """The integrated GPU, with the SoC's entries of the device tree."""

    device: str
    """The platform device: "17000000.gpu"."""
    compatible: tuple[str, ...]
    """Of the board, most specific first: "nvidia,p3834-0008", "nvidia,tegra264"."""
    driver: str = "nvgpu"
    driver_version: str | None = None
    """Of NVIDIA's kernel modules, with which /dev/nvidia0 exists; None: nvgpu only."""

    def plan(self, machine: Machine, tree: Tree) -> None:
        """Add the device, the device tree and the nodes."""
        path = f"sys/devices/platform/bus@0/{self.device}"
        compatible = "".join(f"{name}\0" for name in self.compatible).encode()
        tree.file("sys/firmware/devicetree/base/compatible", compatible)
        tree.file("proc/device-tree/compatible", compatible)
        chip = self.compatible[-1].removeprefix("nvidia,tegra")
        tree.files("sys/devices/soc0", {"family": "Tegra", "soc_id": chip})
        tree.file(f"{path}/uevent", f"DRIVER={self.driver}\nOF_NAME=gpu\nMODALIAS=of:NgpuT(null)")
        tree.link(f"{path}/subsystem", "sys/bus/platform")
        tree.link(f"{path}/driver", f"sys/bus/platform/drivers/{self.driver}")
        tree.link(f"sys/bus/platform/devices/{self.device}", path)
        tree.link(f"sys/bus/platform/drivers/{self.driver}/{self.device}", path)
        if self.driver_version is not None:
            tree.file("sys/module/nvidia/version", self.driver_version)
            tree.node("dev/nvidia0", MAJORS["nvidia"], 0)
            tree.node("dev/nvidiactl", MAJORS["nvidia"], _CONTROL_MINOR)
            tree.node("dev/nvidia-uvm", MAJORS["nvidia-uvm"], 0)
