"""Network interfaces: the RDMA nodes of an HCA, or for a plain interface nothing but what its variables say.

Moving an interface into the container's network namespace is not done here: claims ask for it by their configuration,
and else a network plugin does it. The note says so, rather than leaving the user to find out.
"""

from __future__ import annotations

from dra_agent.cdi.edits import nodes
from dra_agent.cdi.edits.provider import DeviceEdits
from dra_agent.cdi.model import ContainerEdits
from dra_agent.inventory.model import Device

_NOT_MOVED = (
    "the network interface stays on the host: its variables name it, "
    "and host networking or a network plugin must bring it in"
)


def network(device: Device) -> DeviceEdits:
    """Give the RDMA nodes of an interface, where it has them."""
    common = [node for node in device.nodes if node.role == "rdma-cm"]
    own = [node for node in device.nodes if node.role != "rdma-cm"]
    return DeviceEdits(
        own=nodes.of_device(own, device=device.name),
        common=nodes.of_device(common, device=device.name) if own else ContainerEdits(),
        notes=(_NOT_MOVED,) if device.identity.get("ifname") else (),
    )
