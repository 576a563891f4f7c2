"""AMD GPUs and their compute partitions: the compute node that all share, and the card and render node of their own.

ROCm's user space is part of the image, so nodes are all that a container needs of the host. A neighbour's render node
is never given: the nodes are what keeps containers apart.
"""

from __future__ import annotations

from dra_agent.cdi.edits import nodes
from dra_agent.cdi.edits.provider import DeviceEdits
from dra_agent.inventory.model import Device


def amd_gpu(device: Device) -> DeviceEdits:
    """Give the nodes of an AMD GPU or partition."""
    common = [node for node in device.nodes if node.role == "kfd"]
    own = [node for node in device.nodes if node.role != "kfd"]
    notes = () if common else ("the compute node /dev/kfd is not there: graphics only, no ROCm",)
    return DeviceEdits(
        own=nodes.of_device(own, device=device.name),
        common=nodes.of_device(common, device=device.name),
        notes=notes,
    )
