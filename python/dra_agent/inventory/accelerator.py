"""Accelerators that are neither GPUs nor FPGAs: Gaudi, NPUs, vector engines, whatever has an accel node or its class.

Only attributes of sysfs are published; a vendor with a library would need its own back end.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_agent.host import Host
from dra_agent.inventory.builder import DeviceBuilder
from dra_agent.inventory.generic import add_drm_nodes
from dra_agent.inventory.model import Device, Diagnostic
from dra_agent.inventory.products import product_of
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.sysfs import character_devices
from dra_agent.topology.model import PciFunction as Function


class AcceleratorBackend:
    """Describes accelerators by what the kernel shows."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def devices(self, functions: Sequence[Function], problems: list[Diagnostic]) -> list[Device]:
        """Describe each accelerator."""
        return [self._device(function, problems) for function in functions]

    def close(self) -> None:
        """Nothing is held."""

    def _device(self, function: Function, problems: list[Diagnostic]) -> Device:
        draft = DeviceBuilder(self._host, function, "accelerator", problems)
        draft.set("productName", product_of(function))
        for name in function.accel:
            draft.node(f"/dev/accel/{name}", "accel")
            # Habana's driver makes a second node, for monitoring, with the number of the first.
            draft.node_if_there(f"/dev/accel/accel_controlD{name.removeprefix('accel')}", "vendor")
        draft.add_identity(accel=next(iter(function.accel), None))
        if function.drm is not None:
            add_drm_nodes(draft, function.drm.card, function.drm.render)
        for name in character_devices(draft.files):
            if not name.startswith(("accel/", "infiniband/", "dri/")):
                draft.node(f"/dev/{name}", "vendor")
        return draft.build()


def make(host: Host, settings: InventorySettings) -> AcceleratorBackend:
    """Make the back end."""
    del settings
    return AcceleratorBackend(host)
