"""GPUs of NVIDIA's systems on a chip (Tegra, Jetson): platform devices, which a scan of PCI functions does not have.

Boards are recognized as NVIDIA/go-nvlib does (pkg/nvlib/info): by the device tree, or the family of the chip.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dra_agent.claimable.decide import PlatformGpu
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


class PlatformGpus:
    """Those of one host; what its board is does not change, and is read once."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._problems: list[Diagnostic] = []
        self._board = _board(host, self._problems)

    def present(self, functions: Iterable[PciFunction], problems: list[Diagnostic]) -> list[PlatformGpu]:
        """Return the GPUs of the chip; none if the only one is among the PCI functions, as that of a Thor can be."""
        problems += self._problems
        if self._board is None:
            return []
        platform = SysfsDir(self._host.sysfs / "bus/platform/devices", problems)
        found = [
            PlatformGpu(name, self._board, platform.subdir(name).link("driver"))
            for name in platform.names()
            if _GPU.fullmatch(name)
        ]
        if found or any(one.kind is DeviceKind.GPU and one.vendor_id == _NVIDIA for one in functions):
            return found
        # A driver has made its nodes without a device that is known by name.
        has_nodes = any((self._host.dev / node).exists() for node in _NODES)
        return [PlatformGpu(_TEGRA, self._board, None)] if has_nodes else []


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
