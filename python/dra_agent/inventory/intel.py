"""Intel GPUs and their virtual functions, from what i915 and xe show in sysfs.

A GPU that is divided into virtual functions is published as those: the physical function only administers them.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_agent.host import Host
from dra_agent.inventory.api import Capacity
from dra_agent.inventory.device import Device, Problem, device_name
from dra_agent.inventory.draft import Draft, pci_files
from dra_agent.inventory.plain import add_drm_nodes
from dra_agent.inventory.products import board_memory_of, product_of
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.sysfs import Files
from dra_agent.topology.model import Device as Function


class IntelBackend:
    """Describes Intel GPUs."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def devices(self, functions: Sequence[Function], problems: list[Problem]) -> list[Device]:
        """Describe each GPU, or each of its virtual functions."""
        modules = Files(self._host.sysfs / "module", problems)
        by_address = {function.pci_address: function for function in functions}
        devices = []
        for function in functions:
            if function.sriov is not None and function.sriov.num_vfs > 0:
                continue
            draft = Draft(self._host, function, "gpu", problems)
            draft.set("productName", product_of(function))
            draft.set("brand", _brand(function))
            if function.driver is not None:
                draft.set_version("driverVersion", modules.text(f"{function.driver}/version"))
            if function.physfn is None:
                memory = _memory(draft.files, function) or board_memory_of(function)
            else:
                draft.set("type", "vf")
                draft.set("memoryEnforcement", "vf")
                draft.identify(parent=device_name("gpu", function.physfn))
                physical = by_address.get(function.physfn)
                memory = _memory(draft.files, function) or _quota(self._host, function, physical, problems)
            if memory:
                draft.capacity["memory"] = Capacity.of_bytes(memory)
            if function.drm is not None:
                add_drm_nodes(draft, function.drm.card, function.drm.render)
            devices.append(draft.finish())
        return devices

    def close(self) -> None:
        """Nothing is held."""


def _memory(files: Files, function: Function) -> int | None:
    """Give the local memory in bytes: xe tells it per tile, Intel's own builds of i915 per card, the kernel's not.

    The size of the memory BAR is no substitute: it is rounded up to a power of two, or may be a window of 256 MiB.
    """
    tiles = [name for name in files.names() if name.startswith("tile") and name[4:].isdecimal()]
    amounts = [files.number(f"{tile}/physical_vram_size_bytes") for tile in tiles]
    total = sum(amount for amount in amounts if amount is not None)
    if not total and function.drm is not None and function.drm.card is not None:
        total = files.number(f"drm/{function.drm.card}/lmem_total_bytes") or 0
    return total or None


def _quota(host: Host, function: Function, physical: Function | None, problems: list[Problem]) -> int | None:
    """Give the memory that the physical function has assigned to a virtual one (ABI sysfs-driver-intel-xe-sriov)."""
    if physical is None or function.pci_address not in physical.virtfns:
        return None
    number = physical.virtfns.index(function.pci_address) + 1
    return pci_files(host, physical, problems).number(f"sriov_admin/vf{number}/profile/vram_quota")


def _brand(function: Function) -> str | None:
    name = product_of(function) or ""
    return next((brand for brand in ("Flex", "Max", "Arc") if brand in name.split()), None)


def make(host: Host, settings: InventorySettings) -> IntelBackend:
    """Make the back end."""
    del settings
    return IntelBackend(host)
