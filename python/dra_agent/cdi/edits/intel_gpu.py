"""Intel GPUs and their virtual functions: card and render node, also under their names by PCI address.

The compute runtime looks below /dev/dri/by-path where it is asked for a GPU by address. User space is in the image.
"""

from __future__ import annotations

from dra_agent.cdi.edits import nodes
from dra_agent.cdi.edits.provider import DeviceEdits
from dra_agent.host import Host
from dra_agent.inventory.model import Device


class IntelGpu:
    """The recipe, for one host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def __call__(self, device: Device) -> DeviceEdits:
        """Give the nodes of an Intel GPU or virtual function."""
        edits = nodes.of_device(device.nodes, device=device.name)
        for kind in ("card", "render"):
            path = f"/dev/dri/by-path/pci-{device.pci_address}-{kind}"
            edits = edits.merged(nodes.link(path, self._host.dev_path(path)))
        return DeviceEdits(own=edits)
