"""Whether a prepared claim still has the devices that it holds, and whether anything still uses them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dra_agent.api_object import allocation_of, consumers_of
from dra_agent.deadline import Deadline
from dra_agent.device_setup.open_files import SEARCH_TIMEOUT_S, device_nodes, listed_processes, require_unused
from dra_agent.errors import AgentError, RetryableError
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.prepare import allocation as allocations
from dra_agent.prepare import record as records
from dra_agent.prepare.ledger import LedgerEntry
from dra_agent.processes.containers import place_of
from dra_agent.status.device_status import NodeDevices

NO_LONGER_EXISTS = "no longer exists"
NOT_ALLOCATED = "is not allocated any more"


def orphan_reason(entry: LedgerEntry, claim: Mapping[str, Any], driver: str, pods: Collection[str]) -> str | None:
    """Return why the claim of an entry no longer has its devices; "" if it has them, None if that is not known.

    `claim` is the object of its name as the API server returns it now; `pods` are the UIDs of those that it was
    reserved for when it was prepared. While one of them still reserves the claim, its allocation is not believed: the
    API server permits no change of it.
    """
    uid = (claim.get("metadata") or {}).get("uid")
    if not isinstance(uid, str) or not uid:
        return None
    if uid != entry.uid:
        return NO_LONGER_EXISTS
    users = {consumer.get("uid") for consumer in consumers_of(claim)}
    if allocation_of(claim) is None:
        return None if users else NOT_ALLOCATED
    try:
        allocation = allocations.read(claim, driver)
    except AgentError:
        return None
    if records.same_devices(entry, allocation):
        return ""
    if not users.isdisjoint(pods):
        return None
    devices = ", ".join(sorted(f"{item.pool}/{item.device}" for item in allocation.devices))
    return f"is allocated to {devices or 'no device of this driver'} now"


def require_unused_claim(host: Host, devices: NodeDevices, entry: LedgerEntry, pods: Collection[str]) -> None:
    """Raise RetryableError where one of the pods runs, a process has a device open, or that cannot be known.

    A pod runs while a process is in its cgroup: it may open a device that it has closed.
    """
    deadline = Deadline.of(SEARCH_TIMEOUT_S)  # of all its devices: the operator's command waits for them
    functions: dict[tuple[str, str | None], Device] = {}  # partitions have the nodes of their device
    for held in entry.devices:
        device = devices.lookup(held.pool, held.device)
        if device is not None and not held.admin_access:
            functions[device.pci_address, device.identity.get("minor")] = device
    for device in functions.values():
        why = f"a device of it ({device.pci_address}) may be in use"
        require_unused(host, device_nodes(host, device), entry.with_uid, deadline, why)
    for pid in sorted(listed_processes(host)) if pods else ():
        place = place_of(host.proc, pid)
        if place is not None and place.kind == "pod" and place.pod_uid in pods:
            raise RetryableError(
                f"its pod {place.pod_uid} still runs (process {pid})",
                where=entry.with_uid,
                hint="end it; the agent retries",
            )
        deadline.check(entry.with_uid)
