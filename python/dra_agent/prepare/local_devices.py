"""The devices of this host by the names of an allocation, with errors for those that are missing or of another node."""

from __future__ import annotations

from collections.abc import Iterable

from dra_agent.claimable.divided import divisions
from dra_agent.claimable.network import HostNetwork
from dra_agent.errors import PermanentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import RULE_ALLOWS, Device, is_pool_of
from dra_agent.inventory.passthrough import PASSTHROUGH
from dra_agent.prepare.allocation import ClaimAllocation
from dra_agent.prepare.ledger import Lookup


class LocalDevices:
    """Finds the devices of one node by pool and name."""

    def __init__(self, node: str, lookup: Lookup, host: Host) -> None:
        self._node = node
        self._sysfs = host.sysfs
        self._network = HostNetwork(host)
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
            if (published is not None and published.integer) or RULE_ALLOWS in device.identity:
                continue
            if found := divisions(self._sysfs, device.pci_address):
                raise RetryableError(
                    f"it has {found} since it was published, which other claims may have",
                    where=f"device {device.name}",
                    hint="remove them (sriov_numvfs, devlink), or allow it by a rule of inventory.host_interfaces",
                )

    def check_unused(self, devices: Iterable[Device]) -> None:
        """Reject a NIC whose interface the host has come to use after it was published, or if that is not known.

        RetryableError: the use may end, and a rule may allow it. An address beside RDMA is no reason.
        """
        for device in devices:
            interface = device.identity.get("ifname")
            if device.family != "nic" or interface is None or {RULE_ALLOWS, PASSTHROUGH} & device.identity.keys():
                continue
            use = self._network.present_use(interface, f"device {device.name}")
            if use is not None and use.code == "host-interface":
                raise RetryableError(
                    f"the host uses it: {use.reason}",
                    where=f"device {device.name}",
                    hint="end that use, or allow it by a rule of inventory.host_interfaces; the agent retries",
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
