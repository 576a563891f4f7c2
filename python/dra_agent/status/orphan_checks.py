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
from dra_agent.processes.containers import pod_among
from dra_agent.processes.visibility import hidden_processes_reason, permission_hint
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
    pods_matter = False
    for held in entry.devices:
        device = devices.lookup(held.pool, held.device)
        if device is not None and not held.admin_access:
            functions[device.pci_address, device.identity.get("minor")] = device
        pods_matter |= device is None and not held.admin_access
    for device in functions.values():
        nodes = device_nodes(host, device)
        # A pod uses a network interface without an open device node.
        pods_matter |= not nodes or device.family == "nic"
        require_unused(host, nodes, entry.with_uid, deadline, f"a device of it ({device.pci_address}) may be in use")
    if pods_matter:
        _require_known_pods(host, entry)
    _require_ended(host, entry, pods, deadline)


def _require_known_pods(host: Host, entry: LedgerEntry) -> None:
    """Raise RetryableError where it cannot be known if a pod of the claim runs."""
    unknown, hint = hidden_processes_reason(host), permission_hint()
    if not unknown and not records.pods(entry):
        unknown, hint = "the ledger has no pod of it", "end the pods that use it, then release it with --force"
    if unknown:
        raise RetryableError(f"cannot determine if its pods run: {unknown}", where=entry.with_uid, hint=hint)


def _require_ended(host: Host, entry: LedgerEntry, pods: Collection[str], deadline: Deadline) -> None:
    for pid in sorted(listed_processes(host)) if pods else ():
        try:
            pod = pod_among(host.proc, pid, pods)
        except OSError as error:
            raise RetryableError(
                f"cannot determine if its pods run: the cgroup of process {pid} cannot be read ({error.strerror})",
                where=entry.with_uid,
                hint="the agent retries",
            ) from error
        if pod is not None:
            raise RetryableError(
                f"its pod {pod} still runs (process {pid})", where=entry.with_uid, hint="end it; the agent retries"
            )
        deadline.check(entry.with_uid)
