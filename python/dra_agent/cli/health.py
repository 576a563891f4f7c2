"""The health of devices as commands show it: what the agent of this host has noted, and what a look shows now."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dra_agent.cli.shown_host import ShownHost
    from dra_agent.host import Host
    from dra_agent.inventory import Inventory
    from dra_agent.topology import Topology


def with_health(inventory: Inventory, shown: ShownHost, host: Host) -> Inventory:
    """Give the inventory with what counts against its devices."""
    from dra_agent.agent.device_state import boot_id
    from dra_agent.health import HealthStateFile, apply_recorded

    noted = HealthStateFile(shown.records, boot_id(host.proc)).read()
    return apply_recorded(inventory, shown.config.health, shown.config.driver_name, noted)


def published(shown: ShownHost, host: Host, topology: Topology) -> Inventory:
    """Take the inventory as it is published: with health, and without what others manage."""
    from dra_agent.conflicts import exclude, load_conflicts
    from dra_agent.inventory import collect
    from dra_agent.inventory.passthrough_bindings import VfioBindingStore

    config = shown.config
    handovers = VfioBindingStore(shown.records)
    inventory = with_health(
        collect(host, topology, config.inventory, driver=config.driver_name, handovers=handovers), shown, host
    )
    remembered = load_conflicts(shown.records)
    return inventory if remembered.published else exclude(inventory, remembered.verdict)
