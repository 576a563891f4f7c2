"""Accelerators that are neither GPUs nor FPGAs: Gaudi, Neuron, NPUs, vector engines, and all others of that class.

Only attributes of sysfs are published; a vendor with a library needs its own back end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from dra_agent.claimable.drivers import NEURON_DRIVER
from dra_agent.diagnostic import Diagnostic
from dra_agent.host import Host
from dra_agent.inventory import neuron
from dra_agent.inventory.api import Capacity
from dra_agent.inventory.builder import DeviceBuilder
from dra_agent.inventory.generic import add_drm_nodes
from dra_agent.inventory.model import Device, Exclusion, device_name
from dra_agent.inventory.products import board_memory_of, product_of
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.user_nodes import add_user_nodes
from dra_agent.topology.model import PciFunction

_DRM_ACCEL = "accel/accel"
"""The beginning of names that the kernel's accel class gives nodes below /dev; a number follows."""


class AcceleratorBackend:
    """Describes accelerators by their sysfs attributes."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._withheld: list[Exclusion] = []

    def withheld(self) -> Sequence[Exclusion]:
        """Return the accelerators of the last scan whose node is not known."""
        return self._withheld

    def devices(self, functions: Sequence[PciFunction], problems: list[Diagnostic]) -> list[Device]:
        """Describe each accelerator."""
        of_neuron = [function for function in functions if function.driver == NEURON_DRIVER]
        nodes = neuron.nodes_by_address(self._host) if of_neuron else {}
        found = []
        self._withheld = []
        for function in functions:
            if function.driver != NEURON_DRIVER:
                found.append(self._device(function, problems))
            elif name := nodes.get(function.pci_address):
                found.append(self._neuron(function, name, problems))
            else:
                message = (
                    "it cannot be determined which /dev/neuron* belongs to this accelerator, so it is not published"
                )
                hint = "run the agent as root, with access to /dev/neuron*"
                name = device_name("accelerator", function.pci_address)
                problems.append(Diagnostic(function.pci_address, message, hint))
                self._withheld.append(Exclusion(name, message, "node-unknown", function.pci_address, hint))
        return found

    def close(self) -> None:
        """Nothing is held."""

    def _neuron(self, function: PciFunction, name: str, problems: list[Diagnostic]) -> Device:
        builder = self._draft(function, problems)
        builder.node(f"/dev/{name}", "accel")
        builder.add_identity(accel=name)
        cores = neuron.core_count(self._host, name, problems)
        if cores is not None and cores > 0:
            builder.capacity["neuronCores"] = Capacity.of(cores)
        return builder.build()

    def _draft(self, function: PciFunction, problems: list[Diagnostic]) -> DeviceBuilder:
        builder = DeviceBuilder(self._host, function, "accelerator", problems)
        builder.set("productName", product_of(function))
        memory = board_memory_of(function)
        if memory is not None:
            builder.capacity["memory"] = Capacity.of_bytes(memory)
        return builder

    def _device(self, function: PciFunction, problems: list[Diagnostic]) -> Device:
        builder = self._draft(function, problems)
        for name in function.accel:
            builder.node(f"/dev/{name}", "accel")
            # Habana's driver makes a second node, for monitoring, with the number of the first.
            if name.startswith(_DRM_ACCEL):
                builder.node_if_there(f"/dev/accel/accel_controlD{name.removeprefix(_DRM_ACCEL)}", "vendor")
        if function.accel:
            builder.add_identity(accel=PurePath(function.accel[0]).name)
        # Scale-out ports of a Gaudi: Intel's DRA driver injects them, too (pkg/gaudi/cdihelpers of 1da939f).
        for uverbs in function.uverbs:
            builder.node(f"/dev/infiniband/{uverbs}", "uverbs")
        if function.drm is not None:
            add_drm_nodes(builder, function.drm.card, function.drm.render)
        add_user_nodes(builder)
        return builder.build()


def make(host: Host, settings: InventorySettings) -> AcceleratorBackend:
    """Make the back end."""
    del settings
    return AcceleratorBackend(host)
