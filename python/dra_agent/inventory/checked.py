"""The rules of a configuration, compiled for nothing but their errors."""

from __future__ import annotations

from dra_agent.host import Host
from dra_agent.inventory.partitions import PartitionRules
from dra_agent.inventory.passthrough import Passthrough
from dra_agent.inventory.rules import Rules
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.shares import Shares


def check_rules(settings: InventorySettings, driver: str) -> None:
    """Raise UsageError for the first rule that can never work; its `where` is `configuration, inventory.FIELD`."""
    Rules(settings, driver)
    PartitionRules(settings.partition, driver)
    Shares(settings.share, driver)
    Passthrough(Host(), settings.passthrough, driver, None)
