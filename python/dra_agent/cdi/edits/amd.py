"""AMD GPUs and their compute partitions: the shared compute node, and the card and render node of each.

ROCm's user space is part of the image, so a container needs only nodes of the host. The nodes are the only isolation of
containers, so render nodes of other GPUs are never injected.
"""

from __future__ import annotations

from dra_agent.cdi.edits.provider import DeviceEdits, EditContext, EditProvider, required_node_edits
from dra_agent.inventory.model import Device


def amd_gpu(device: Device) -> DeviceEdits:
    """Return the nodes of an AMD GPU or partition."""
    common = [node for node in device.nodes if node.role == "kfd"]
    own = [node for node in device.nodes if node.role != "kfd"]
    notes = () if common else ("the compute node /dev/kfd does not exist: graphics only, no ROCm",)
    return DeviceEdits(
        own=required_node_edits(own, device=device.name),
        common=required_node_edits(common, device=device.name),
        notes=notes,
    )


def make(context: EditContext) -> EditProvider:
    """Create the provider; see dra_agent.inventory.vendors."""
    del context
    return amd_gpu
