"""The devices of this host by the names of an allocation, with errors for those that are missing or of another node."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dra_agent.claimable.divided import virtual_functions
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.model import Device, is_pool_of
from dra_agent.inventory.passthrough import PASSTHROUGH
from dra_agent.prepare.allocation import ClaimAllocation
from dra_agent.prepare.ledger import Lookup


class LocalDevices:
    """Finds the devices of one node by pool and name."""

    def __init__(self, node: str, lookup: Lookup, sysfs: Path) -> None:
        self._node = node
        self._sysfs = sysfs
        self.lookup = lookup
        """Returns None for a device that is not on this host now."""

    def find(self, pool: str, name: str) -> Device:
        """Return a device; raises RetryableError if it is not on this host now."""
        device = self.lookup(pool, name)
        if device is None:
            raise RetryableError(
                "is not on this host now",
                where=f"device {name} of pool {pool}",
                hint="`dra-agent devices` lists the devices, and `dra-agent doctor` reports problems",
            )
        return device

    def of(self, allocation: ClaimAllocation) -> dict[tuple[str, str], Device]:
        """Return the devices of an allocation by pool and name; raises RetryableError as `find` does."""
        return {(item.pool, item.device): self.find(item.pool, item.device) for item in allocation.devices}

    def check_undivided(self, devices: Iterable[Device]) -> None:
        """Reject an adapter that got virtual functions after it was published: other claims may have those.

        RetryableError: they may be removed, and a rule may allow both.
        """
        for device in devices:
            if device.family != "nic" or "physfn" in device.identity or PASSTHROUGH in device.identity:
                continue
            published = device.attributes.get("sriovVfs")
            if published is not None and published.integer:
                continue
            if count := virtual_functions(self._sysfs, device.pci_address):
                raise RetryableError(
                    f"it has {count} virtual functions since it was published, which other claims may have",
                    where=f"device {device.name}",
                    hint="remove them (sriov_numvfs), or allow it by a rule of inventory.host_interfaces",
                )

    def check_pools(self, allocation: ClaimAllocation) -> None:
        """Reject devices of other nodes: names derive from PCI addresses, which are equal on nodes of one model.

        Raises:
            RetryableError: A device is not on this host now.
            PermanentError: A pool is not of this node.
        """
        for item in allocation.devices:
            if not is_pool_of(item.pool, self._node):
                own = self.find(item.pool, item.device).pool(self._node)
                raise PermanentError(
                    f"device {item.device} of pool {item.pool} is not of this node; its pool is {own}",
                    where=str(allocation),
                    hint="delete the claim and let it be allocated again",
                )
