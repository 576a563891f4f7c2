"""The health of devices as commands show it: what the agent of this host has noted, and what a look shows now."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dra_agent.agent.config import Config
    from dra_agent.host import Host
    from dra_agent.inventory import Inventory


def with_health(inventory: Inventory, config: Config, host: Host) -> Inventory:
    """Give the inventory with what counts against its devices."""
    from dra_agent.agent.hardware import boot_id
    from dra_agent.health import Record, recalled

    noted = Record(config.state_dir, boot_id(host.proc)).read()
    return recalled(inventory, config.health, config.driver_name, noted)
