"""The devices of this host by the names of an allocation, with errors for those that are missing or of another node."""

from __future__ import annotations

from dra_agent.errors import PermanentError, RetryableError
from dra_agent.inventory.model import Device, is_pool_of
from dra_agent.prepare.allocation import ClaimAllocation
from dra_agent.prepare.ledger import Lookup


class LocalDevices:
    """Finds the devices of one node by pool and name."""

    def __init__(self, node: str, lookup: Lookup) -> None:
        self._node = node
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
