"""Network interfaces: the RDMA nodes of an HCA; nothing for other interfaces, whose variables contain their names.

Interfaces are not moved into the container's network namespace here: a set-up does it if the claim's configuration
requests it, otherwise a network plugin can. A variable of the container states which.
"""

from __future__ import annotations

from dra_agent.cdi.edits.provider import DeviceEdits, required_node_edits
from dra_agent.cdi.model import ContainerEdits
from dra_agent.inventory.model import Device

_NOT_MOVED = (
    "the network interface stays on the host: its variables name it, "
    "and host networking or a network plugin must bring it in"
)


def network(device: Device) -> DeviceEdits:
    """Return the RDMA nodes of an interface, if it has any."""
    common = [node for node in device.nodes if node.role == "rdma-cm"]
    own = [node for node in device.nodes if node.role != "rdma-cm"]
    return DeviceEdits(
        own=required_node_edits(own, device=device.name),
        common=required_node_edits(common, device=device.name) if own else ContainerEdits(),
        notes=(_NOT_MOVED,) if device.identity.get("ifname") else (),
    )
