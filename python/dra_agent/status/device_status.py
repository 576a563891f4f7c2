"""An entry of a claim's `status.devices`: its content, and when it differs from the stored one.

Shape and limits: resource.k8s.io/v1 AllocatedDeviceStatus (KEP-4817).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple, Protocol

from dra_agent.api_object import Object, results_of
from dra_agent.claim import ClaimRef
from dra_agent.inventory.model import Device, Inventory, device_key
from dra_agent.inventory.network_data import network_data
from dra_agent.prepare.ledger import JournalLedger, LedgerEntry
from dra_agent.status.events import (
    DEVICE_HEALTHY,
    DEVICE_LOST,
    DEVICE_UNHEALTHY,
    EventRecorder,
    ObjectReference,
    Reason,
)
from dra_agent.status.link_changes import LinkChanges

READY = "Ready"
_FROM_ATTRIBUTES = ("productName", "driverVersion", "profile", "rdmaDevice")
_FROM_IDENTITY = ("uuid", "parent")
_MAX_MESSAGE_CHARS = 1024


class DeviceKey(NamedTuple):
    """A device of a claim: the key of an entry, besides the driver."""

    pool: str
    device: str
    share_id: str | None = None


class PreparedClaim(ClaimRef, frozen=True):
    """A claim that is prepared on this host."""

    devices: tuple[DeviceKey, ...]


def prepared_claims(entries: Iterable[LedgerEntry]) -> list[PreparedClaim]:
    """Return the prepared claims of a ledger."""
    return [
        PreparedClaim(
            entry.uid,
            entry.namespace,
            entry.name,
            tuple(DeviceKey(held.pool, held.device, held.share_id) for held in entry.devices if held.request),
        )
        for entry in entries
        if entry.state == "completed"
    ]


class NodeDevices(Protocol):
    """The devices of this node. A protocol, because the agent, which has them, is a layer above."""

    @property
    def inventory(self) -> Inventory:
        """All devices."""

    def lookup(self, pool: str, name: str) -> Device | None:
        """Return a device; None if it is not on this host now."""


class Condition(NamedTuple):
    """The device's Ready condition; `reason` is one word in CamelCase."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


def device_condition(device: Device | None) -> Condition:
    """Return the condition of a device; `device` is None if it is not on this host."""
    if device is None:
        return Condition("False", "DeviceGone", "the device is not on this host")
    match device.health:
        case "unhealthy":
            return Condition("False", "Unhealthy", device.health_reason or "the device is not healthy")
        case "healthy":
            return Condition("True", "Healthy")
        case _:
            return Condition("True", "Prepared", "nothing is known to be wrong; its health is not monitored")


def entry(
    driver: str, key: DeviceKey, device: Device | None, condition: Condition, ips: Sequence[str], now: str
) -> Object:
    """Write an entry; `now` (RFC 3339) is when the condition changed, if it did."""
    desired: Object = {"driver": driver, "pool": key.pool, "device": key.device}
    if key.share_id is not None:
        desired["shareID"] = key.share_id
    desired["conditions"] = [
        {
            "type": READY,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message[:_MAX_MESSAGE_CHARS],
            "lastTransitionTime": now,
        }
    ]
    if device is not None:
        desired["data"] = _data(device)
        if network := network_data(device, ips):
            desired["networkData"] = network
    return desired


def keep_transition(desired: Object, before: Object | None) -> Object:
    """Keep the time of the last transition if the status of the condition is unchanged."""
    (own,) = desired["conditions"]
    for previous in (before or {}).get("conditions") or ():
        same = previous.get("type") == READY and previous.get("status") == own["status"]
        if same and previous.get("lastTransitionTime"):
            return {**desired, "conditions": [{**own, "lastTransitionTime": previous["lastTransitionTime"]}]}
    return desired


def own_entries(claim: Mapping[str, Any], driver: str) -> dict[DeviceKey, Object]:
    """Find this driver's entries in a claim."""
    status = claim.get("status") or {}
    return {_key(found): found for found in status.get("devices") or () if found.get("driver") == driver}


def allocated(claim: Mapping[str, Any], driver: str) -> set[DeviceKey]:
    """Find the devices of this driver that a claim is allocated: the API takes entries of no others."""
    return {_key(result) for result in results_of(claim, driver)}


def is_up_to_date(stored: Any, desired: Any) -> bool:
    """Return whether the stored entry has all desired fields; other clients may have added more."""
    if isinstance(desired, Mapping):
        return isinstance(stored, Mapping) and all(
            key in stored and is_up_to_date(stored[key], desired[key]) for key in desired
        )
    if isinstance(desired, list) and desired and isinstance(desired[0], Mapping):
        return isinstance(stored, list) and all(
            any(is_up_to_date(one, element) for one in stored) for element in desired
        )
    return bool(stored == desired)


def _key(named: Mapping[str, Any]) -> DeviceKey:
    return DeviceKey(str(named.get("pool", "")), str(named.get("device", "")), named.get("shareID"))


def _data(device: Device) -> Object:
    """Return the description of the device for users: strings of at most 64 bytes, far below the limit of 10 KiB."""
    data: Object = {"pciAddress": device.pci_address, "vendor": device.vendor}
    for name in _FROM_IDENTITY:
        if value := device.identity.get(name):
            data[name] = value
    for name in _FROM_ATTRIBUTES:
        if (attribute := device.attributes.get(name)) is not None:
            data[name] = attribute.value
    if device.numa_node is not None:
        data["numaNode"] = device.numa_node
    return data


Name = tuple[str, str]
"""The key of a device on its host (`inventory.model.device_key`): its pool may have had another name at allocation."""


class DeviceEventEmitter:
    """Compares the devices with their previous state; `changed` is called on one thread."""

    def __init__(
        self,
        node: str,
        events: EventRecorder,
        devices: NodeDevices,
        ledger: JournalLedger,
    ) -> None:
        self._node = node
        self._events = events
        self._devices = devices
        self._ledger = ledger
        self._unhealthy: dict[Name, Condition] = {}
        self._lost: set[tuple[str, Name]] = set()
        self._links = LinkChanges()

    def changed(self) -> None:
        """Check all devices. Also called at the start, where issues are reported but no recoveries."""
        inventory, holders = self._devices.inventory, prepared_claims(self._ledger.entries())
        stored: dict[Name, Device] = {(device.family, device.name): device for device in inventory.devices}
        conditions = {name: device_condition(device) for name, device in stored.items()}
        unhealthy = {name: condition for name, condition in conditions.items() if condition.status == "False"}
        for name, condition in unhealthy.items():
            before = self._unhealthy.get(name)
            if before is None or (before.reason, before.message) != (condition.reason, condition.message):
                self._record(DEVICE_UNHEALTHY, stored[name], f"{condition.reason}: {condition.message}", holders)
        for name in self._unhealthy.keys() - unhealthy.keys():
            if name in stored:
                self._record(DEVICE_HEALTHY, stored[name], "has recovered", holders)
        self._unhealthy = unhealthy
        for reason, note in self._links.changed(inventory.devices):
            self._events.record(reason, ObjectReference.node(self._node), note)
        self._record_lost(stored.keys(), holders)

    def _record(self, reason: Reason, device: Device, note: str, holders: Sequence[PreparedClaim]) -> None:
        name = (device.family, device.name)
        note = f"device {device.name} of pool {device.pool(self._node)}: {note}"
        self._events.record(reason, ObjectReference.node(self._node), note)
        for claim in holders:
            if any(device_key(key.pool, key.device) == name for key in claim.devices):
                self._events.record(reason, ObjectReference.claim(claim.namespace, claim.name, claim.uid), note)

    def _record_lost(self, stored: Set[Name], holders: Sequence[PreparedClaim]) -> None:
        lost = {
            (claim.uid, (key.pool, key.device))
            for claim in holders
            for key in claim.devices
            if device_key(key.pool, key.device) not in stored
        }
        by_uid = {claim.uid: claim for claim in holders}
        for uid, (pool, device) in sorted(lost - self._lost):
            claim = by_uid[uid]
            self._events.record(
                DEVICE_LOST,
                ObjectReference.claim(claim.namespace, claim.name, uid),
                f"device {device} of pool {pool} is not on node {self._node} any more, and the claim holds it",
            )
        self._lost = lost
