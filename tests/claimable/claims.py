"""A claim of one device, prepared on a host with its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dra_agent.cdi.directory import SpecDirectory
from dra_agent.cdi.edits import EditProviders
from dra_agent.host import Host
from dra_agent.inventory.model import SHARED_ROLES, Device, Inventory
from dra_agent.prepare import Preparer
from dra_agent.prepare.ledger import JournalLedger
from simulate.test_every_profile import DRIVER, NODE, nodes_of


def received(host: Host, inventory: Inventory, folder: Path) -> dict[str, set[str]]:
    """Prepare a claim of each device; return by device the nodes that its container gets."""
    found = {}
    specs = SpecDirectory(folder / "cdi", DRIVER)
    with JournalLedger(folder / "state", "boot") as ledger:
        providers = EditProviders(host, directories=[folder / "cdi"])
        preparer = Preparer(DRIVER, ledger, specs, inventory.lookup, node=NODE, host=host, edit_providers=providers)
        for device in inventory.devices:
            preparer.prepare(_claim(device))
            found[device.name] = nodes_of(specs.file(device.name))
            preparer.unprepare(device.name)
    return found


def unusable(device: Device, nodes: set[str]) -> bool:
    """Return True if a container gets nothing of the device: no node of its own, and no interface or RDMA device.

    A card node alone sets modes.
    """
    own = {node.path for node in device.nodes if node.role not in (*SHARED_ROLES, "card")}
    return not (own and own <= nodes) and not {"ifname", "rdma"} & device.identity.keys()


def _claim(device: Device) -> dict[str, Any]:
    result = {"request": "one", "driver": DRIVER, "pool": device.pool(NODE), "device": device.name}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": device.name, "namespace": "default", "uid": device.name},
        "spec": {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "any"}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
