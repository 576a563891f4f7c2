"""Devices with common attributes only: bound to vfio-pci, or GPUs of a vendor without a back end.

A vfio-bound device has type "vfio", so that a class for type "gpu" or "nic" never selects it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from dra_agent.diagnostic import Diagnostic
from dra_agent.host import Host
from dra_agent.inventory.builder import DeviceBuilder
from dra_agent.inventory.model import FAMILIES, Device, device_name
from dra_agent.inventory.products import product_of
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.user_nodes import add_user_nodes
from dra_agent.topology.model import PciFunction


class PlainBackend:
    """Describes a function by its entry in the topology."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def shared_facts(
        self, functions: Sequence[PciFunction], problems: list[Diagnostic], *, again: bool
    ) -> Mapping[str, Hashable]:
        """Return nothing: a description depends on its function only."""
        del functions, problems, again
        return {}

    def close(self) -> None:
        """Nothing is held."""

    def describe(self, function: PciFunction, fact: Hashable, problems: list[Diagnostic]) -> Device:
        """Describe one function."""
        del fact
        family = next(family for family in FAMILIES if family == function.kind.value)
        builder = DeviceBuilder(self._host, function, family, problems)
        builder.set("productName", product_of(function))
        if function.drm is not None:
            add_drm_nodes(builder, function.drm.card, function.drm.render)
        add_user_nodes(builder)
        if family == "nic":
            builder.set("isSriovVf", function.physfn is not None)
        elif function.physfn is not None:
            # If the physical function is published as well, it cannot be allocated while this one is.
            builder.add_identity(parent=device_name(family, function.physfn))
        return builder.build()


def add_drm_nodes(builder: DeviceBuilder, card: str | None, render: str | None) -> None:
    """Add /dev/dri/cardN and /dev/dri/renderDN, where the kernel made them."""
    builder.add_identity(card=card, render=render)
    if card is not None:
        builder.node(f"/dev/dri/{card}", "card")
    if render is not None:
        builder.node(f"/dev/dri/{render}", "render")


def make(host: Host, settings: InventorySettings) -> PlainBackend:
    """Make the back end."""
    del settings
    return PlainBackend(host)
