"""GPUs and accelerators of systems on a chip: platform devices, which a scan of PCI functions does not have.

Boards with NVIDIA's chips (Tegra, Jetson) are recognized as NVIDIA/go-nvlib does (pkg/nvlib/info): by the device tree,
or the family of the chip. All others are known by their nodes in the kernel's classes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Literal

from dra_agent.claimable.decide import PlatformDevice
from dra_agent.diagnostic import Diagnostic
from dra_agent.host import Host
from dra_agent.inventory.sysfs import SysfsDir
from dra_agent.topology.model import DeviceKind, PciFunction

_NVIDIA = "0x10de"
_TEGRA = "tegra"
_GPU = re.compile(r"[0-9a-f]+\.(gpu|g[a-z]\d\d[a-z])")
"""Names of its platform device: 17000000.gpu, and 17000000.gv11b or 57000000.gpu before."""
_NODES = ("nvidia0", "nvhost-gpu", "nvgpu")
"""Below /dev, of the drivers of such a GPU."""
_CLASSES: tuple[tuple[Literal["accelerator", "gpu"], str, re.Pattern[str], str], ...] = (
    ("accelerator", "accel", re.compile(r"accel\d+"), "/dev/accel"),
    ("gpu", "drm", re.compile(r"renderD\d+"), "/dev/dri"),
)
"""Family, class in /sys, names of its nodes, and their folder."""
_NO_CHIP = re.compile(r"amdgpu_xcp[._]\d+|vgem|vkms")
"""Platform devices of DRM drivers that are a partition of a PCI function, or software."""
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class PlatformDevices:
    """Those of one host; what its board is does not change, and is read once."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._problems: list[Diagnostic] = []
        self._board = _board(host, self._problems)

    def present(self, functions: Collection[PciFunction], problems: list[Diagnostic]) -> list[PlatformDevice]:
        """Return the GPUs and accelerators of the chip."""
        problems += self._problems
        tegra = self._of_tegra(functions, problems) if self._board is not None else []
        found = {one.name: one for one in (*self._with_nodes(functions, problems), *tegra)}
        return list(found.values())

    def _of_tegra(self, functions: Iterable[PciFunction], problems: list[Diagnostic]) -> list[PlatformDevice]:
        """Return its GPUs; none if the only one is among the PCI functions, as that of a Thor can be."""
        platform = SysfsDir(self._host.sysfs / "bus/platform/devices", problems)
        found = [
            PlatformDevice("gpu", name, platform.subdir(name).link("driver"), tegra=self._board)
            for name in platform.names()
            if _GPU.fullmatch(name)
        ]
        if found or any(one.kind is DeviceKind.GPU and one.vendor_id == _NVIDIA for one in functions):
            return found
        # A driver has made its nodes without a device that is known by name.
        has_nodes = any((self._host.dev / node).exists() for node in _NODES)
        return [PlatformDevice("gpu", _TEGRA, None, tegra=self._board)] if has_nodes else []

    def _with_nodes(self, functions: Iterable[PciFunction], problems: list[Diagnostic]) -> Iterator[PlatformDevice]:
        """Yield platform devices with a node for computing; a link is read for each node that no function has."""
        of_functions: set[str | None] = {node.rpartition("/")[2] for one in functions for node in one.accel}
        of_functions.update(node for one in functions if one.drm is not None for node in (one.drm.render, one.drm.card))
        for family, class_, names, folder in _CLASSES:
            path = f"{self._host.sysfs}/class/{class_}"
            nodes = SysfsDir(path, problems)
            for node in nodes.names():
                if node in of_functions or not names.fullmatch(node):
                    continue
                name = _device_of(f"{path}/{node}")
                if name is None or _PCI_ADDRESS.fullmatch(name) or _NO_CHIP.fullmatch(name):
                    continue
                device = nodes.subdir(f"{node}/device")
                if device.link("subsystem") == "platform":
                    yield PlatformDevice(family, name, device.link("driver"), f"{folder}/{node}")


def _device_of(node: str) -> str | None:
    """Return the name of the device of a node by its link: .../platform/fb000000.gpu/drm/renderD128."""
    try:
        parts = os.readlink(node).rsplit("/", 3)  # noqa: PTH115 - called for each node on every uevent
    except OSError:
        return None
    return parts[1] if len(parts) == 4 else None


def _board(host: Host, problems: list[Diagnostic]) -> str | None:
    """Return what the board is called; None if its chip is not a Tegra."""
    tree = SysfsDir(host.proc / "device-tree", problems)
    model, compatible = tree.text("model"), tree.text("compatible")
    if (model or "").startswith("NVIDIA Jetson"):
        return model
    of_tree = [name for name in (compatible or "").split("\0") if name.startswith(f"nvidia,{_TEGRA}")]
    # A container may not see the device tree.
    chip = SysfsDir(host.sysfs / "devices/soc0", problems)
    if not of_tree and (family := chip.text("family") or "").lower().startswith(_TEGRA):
        of_tree = [" ".join(filter(None, (family, chip.text("soc_id"))))]
    return model or of_tree[0] if of_tree else None
