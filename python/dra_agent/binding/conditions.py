"""The conditions that the scheduler awaits: on published devices, in an allocation, and in a claim's status.

Types: resource.k8s.io/v1 Device, DeviceRequestAllocationResult and AllocatedDeviceStatus.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from dra_agent.claim import ClaimRef
from dra_agent.inventory.model import Device, Inventory, is_pool_of
from dra_agent.status.device_status import DeviceKey

MAX_MESSAGE_CHARS = 1024


class ConditionNames(NamedTuple):
    """The two conditions of a driver."""

    prepared: str
    """bindingConditions: the claim is prepared on the node."""
    failed: str
    """bindingFailureConditions: it cannot be prepared there."""

    @classmethod
    def of(cls, driver: str) -> ConditionNames:
        """Name them after the driver, as its taints."""
        return cls(f"{driver}/Prepared", f"{driver}/PrepareFailed")


class PrepareOutcome(NamedTuple):
    """The result for a claim; `reason` is one word in CamelCase."""

    is_prepared: bool
    reason: str
    message: str = ""


class WaitingClaim(ClaimRef, frozen=True):
    """An allocated claim whose pods wait for conditions of this node's devices."""

    devices: tuple[DeviceKey, ...]
    """Those with the conditions; a claim may have others."""
    allocated_at: datetime | None
    is_decided: bool
    """Whether its status has a result for each of these devices."""


class _AllocatedDevice(msgspec.Struct):
    driver: str
    pool: str
    device: str
    share_id: str | None = msgspec.field(name="shareID", default=None)

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(self.pool, self.device, self.share_id)


class _Result(_AllocatedDevice, rename="camel"):
    binding_conditions: list[str] | None = None


class _Devices(msgspec.Struct):
    results: list[_Result] | None = None


class _Allocation(msgspec.Struct, rename="camel"):
    devices: _Devices | None = None
    allocation_timestamp: str | None = None


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Entry(_AllocatedDevice):
    conditions: list[_Condition] | None = None


class _Status(msgspec.Struct):
    allocation: _Allocation | None = None
    devices: list[_Entry] | None = None


class _Metadata(msgspec.Struct):
    name: str
    uid: str
    namespace: str = "default"


class _Claim(msgspec.Struct):
    metadata: _Metadata
    status: _Status | None = None


def waiting_claim(claim: Mapping[str, Any], driver: str, node: str) -> WaitingClaim | None:
    """Return the part of a claim for which pods wait; None if there is none, or the object is not a claim."""
    try:
        parsed = msgspec.convert(claim, _Claim)
    except msgspec.ValidationError:
        return None
    names = ConditionNames.of(driver)
    status = parsed.status or _Status()
    allocation = status.allocation or _Allocation()
    results = (allocation.devices or _Devices()).results or ()
    devices = tuple(
        result.key
        for result in results
        if result.driver == driver
        and is_pool_of(result.pool, node)
        and names.prepared in (result.binding_conditions or ())
    )
    if not devices:
        return None
    decided = {
        entry.key
        for entry in status.devices or ()
        if entry.driver == driver and any(one.type in names and one.status == "True" for one in entry.conditions or ())
    }
    metadata = parsed.metadata
    return WaitingClaim(
        metadata.uid,
        metadata.namespace,
        metadata.name,
        devices,
        _time(allocation.allocation_timestamp),
        decided.issuperset(devices),
    )


def status_entries(
    driver: str, devices: Iterable[DeviceKey], outcome: PrepareOutcome, now: str
) -> list[dict[str, Any]]:
    """Return `status.devices` with both conditions; `now` (RFC 3339) is when they changed."""
    names = ConditionNames.of(driver)

    def condition(name: str, *, is_true: bool) -> dict[str, str]:
        return {
            "type": name,
            "status": "True" if is_true else "False",
            "reason": outcome.reason,
            "message": outcome.message[:MAX_MESSAGE_CHARS],
            "lastTransitionTime": now,
        }

    entries = []
    for key in devices:
        entry: dict[str, Any] = {"driver": driver, "pool": key.pool, "device": key.device}
        if key.share_id is not None:
            entry["shareID"] = key.share_id
        entry["conditions"] = [
            condition(names.prepared, is_true=outcome.is_prepared),
            condition(names.failed, is_true=not outcome.is_prepared),
        ]
        entries.append(entry)
    return entries


class PublishedConditions:
    """Adds the conditions to the devices that the rules `[[inventory.prepare_ahead]]` select."""

    def __init__(self, driver: str) -> None:
        self._names = ConditionNames.of(driver)
        self._known: dict[str, tuple[Device, Device]] = {}
        """By name: the device without and with the conditions. An unchanged device stays the same object."""

    def apply(self, inventory: Inventory) -> Inventory:
        """Return the inventory with the conditions."""
        before, self._known = self._known, {}
        devices = []
        for device in inventory.devices:
            if device.prepare_ahead:
                known = before.get(device.name)
                if known is None or known[0] is not device:
                    known = (device, self._with_conditions(device))
                self._known[device.name] = known
                device = known[1]
            devices.append(device)
        return msgspec.structs.replace(inventory, devices=tuple(devices)) if self._known else inventory

    def _with_conditions(self, device: Device) -> Device:
        return msgspec.structs.replace(
            device,
            binding_conditions=(self._names.prepared,),
            binding_failure_conditions=(self._names.failed,),
        )


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
