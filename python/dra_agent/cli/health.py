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
    from dra_agent.agent.hardware import boot_id
    from dra_agent.health import Record, recalled

    noted = Record(shown.records, boot_id(host.proc)).read()
    return recalled(inventory, shown.config.health, shown.config.driver_name, noted)


def published(shown: ShownHost, host: Host, topology: Topology) -> Inventory:
    """Take the inventory as it is published: with health, and without what others manage."""
    from dra_agent.inventory import take
    from dra_agent.inventory.handover import Handovers
    from dra_agent.neighbours import recall, without

    config = shown.config
    handovers = Handovers(shown.records)
    inventory = with_health(
        take(host, topology, config.inventory, driver=config.driver_name, handovers=handovers), shown, host
    )
    remembered = recall(shown.records)
    return inventory if remembered.published else without(inventory, remembered.verdict)
