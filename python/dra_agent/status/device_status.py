"""An entry of a claim's `status.devices`: what it says of a device, and when it differs from what is there.

Shape and limits: resource.k8s.io/v1 AllocatedDeviceStatus (KEP-4817).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dra_agent.inventory.model import Device
from dra_agent.inventory.network_data import network_data

Object = dict[str, Any]
READY = "Ready"
_FROM_ATTRIBUTES = ("productName", "driverVersion", "profile", "rdmaDevice")
_FROM_IDENTITY = ("uuid", "parent")
_MESSAGE_LIMIT = 1024


class DeviceKey(NamedTuple):
    """A device of a claim: what names an entry beside the driver."""

    pool: str
    device: str
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim that is prepared on this host."""

    uid: str
    namespace: str
    name: str
    devices: tuple[DeviceKey, ...]


class Condition(NamedTuple):
    """The device's Ready condition; `reason` is one word in CamelCase."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


Judge = Callable[[str, str, Device | None], Condition]
"""Says how a device (pool, name, and what the inventory knows of it now) does."""


def device_condition(pool: str, name: str, device: Device | None) -> Condition:
    """Judge a device by the inventory alone."""
    if device is None:
        return Condition("False", "DeviceGone", "the device is not on this host now")
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
    told: Object = {"driver": driver, "pool": key.pool, "device": key.device}
    if key.share_id is not None:
        told["shareID"] = key.share_id
    told["conditions"] = [
        {
            "type": READY,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message[:_MESSAGE_LIMIT],
            "lastTransitionTime": now,
        }
    ]
    if device is not None:
        told["data"] = _data(device)
        if network := network_data(device, ips):
            told["networkData"] = network
    return told


def keep_transition(told: Object, before: Object | None) -> Object:
    """Take the time of the last transition over where the condition is in the state that it was in."""
    (ours,) = told["conditions"]
    for theirs in (before or {}).get("conditions") or ():
        same = theirs.get("type") == READY and theirs.get("status") == ours["status"]
        if same and theirs.get("lastTransitionTime"):
            return {**told, "conditions": [{**ours, "lastTransitionTime": theirs["lastTransitionTime"]}]}
    return told


def own_entries(claim: Mapping[str, Any], driver: str) -> dict[DeviceKey, Object]:
    """Find this driver's entries in a claim."""
    status = claim.get("status") or {}
    return {_key(found): found for found in status.get("devices") or () if found.get("driver") == driver}


def allocated(claim: Mapping[str, Any], driver: str) -> set[DeviceKey]:
    """Find the devices of this driver that a claim is allocated: the API takes entries of no others."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return {_key(result) for result in results if result.get("driver") == driver}


def is_up_to_date(there: Any, told: Any) -> bool:
    """Tell whether what is there says all that is to be told; others may have said more beside it."""
    if isinstance(told, Mapping):
        return isinstance(there, Mapping) and all(key in there and is_up_to_date(there[key], told[key]) for key in told)
    if isinstance(told, list) and told and isinstance(told[0], Mapping):
        return isinstance(there, list) and all(any(is_up_to_date(one, wanted) for one in there) for wanted in told)
    return bool(there == told)


def _key(named: Mapping[str, Any]) -> DeviceKey:
    return DeviceKey(str(named.get("pool", "")), str(named.get("device", "")), named.get("shareID"))


def _data(device: Device) -> Object:
    """Say what the device is to people who look at the claim: strings of at most 64 bytes, far below the 10 KiB."""
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
