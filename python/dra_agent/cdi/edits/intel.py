"""Intel GPUs and their virtual functions: card and render node, also under their names by PCI address.

The compute runtime selects a GPU by address below /dev/dri/by-path. User space is in the image.
"""

from __future__ import annotations

from dra_agent.cdi.edits.provider import DeviceEdits, EditContext, EditProvider, link_edits, required_node_edits
from dra_agent.host import Host
from dra_agent.inventory.model import Device


class IntelGpu:
    """The provider of one host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def __call__(self, device: Device) -> DeviceEdits:
        """Return the nodes of an Intel GPU or virtual function."""
        edits = required_node_edits(device.nodes, device=device.name)
        for kind in ("card", "render"):
            path = f"/dev/dri/by-path/pci-{device.pci_address}-{kind}"
            edits = edits.merged(link_edits(path, self._host.dev_path(path)))
        return DeviceEdits(own=edits)


def make(context: EditContext) -> EditProvider:
    """Create the provider; see dra_agent.inventory.vendors."""
    return IntelGpu(context.host)
