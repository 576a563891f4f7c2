"""FPGA cards: Xilinx and Intel (Altera), with the device nodes that their drivers made.

A separate management function of a card is not a device: it can reprogram the whole card.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_agent.diagnostic import Diagnostic
from dra_agent.host import Host
from dra_agent.inventory.api import Capacity
from dra_agent.inventory.builder import DeviceBuilder
from dra_agent.inventory.generic import add_drm_nodes
from dra_agent.inventory.model import Device
from dra_agent.inventory.products import fpga_card_of, is_fpga_companion, product_of
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.user_nodes import add_user_nodes
from dra_agent.topology.model import PciFunction


class FpgaBackend:
    """Describes FPGA cards."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def devices(self, functions: Sequence[PciFunction], problems: list[Diagnostic]) -> list[Device]:
        """Describe the function of each card that applications use."""
        return [
            self._device(function, functions, problems) for function in functions if not is_fpga_companion(function)
        ]

    def close(self) -> None:
        """Nothing is held."""

    def _device(self, function: PciFunction, functions: Sequence[PciFunction], problems: list[Diagnostic]) -> Device:
        builder = DeviceBuilder(self._host, function, "fpga", problems)
        builder.set("productName", product_of(function))
        card = fpga_card_of(function)
        if card is not None and card.logic_cells is not None:
            builder.capacity["logicCells"] = Capacity.of(card.logic_cells)
        if function.drm is not None:
            add_drm_nodes(builder, function.drm.card, function.drm.render)
        add_user_nodes(builder, functions)
        return builder.build()


def make(host: Host, settings: InventorySettings) -> FpgaBackend:
    """Make the back end."""
    del settings
    return FpgaBackend(host)
