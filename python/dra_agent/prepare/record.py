"""The payload of a ledger entry: enough to rebuild the claim's CDI spec and to undo its set-ups.

Newer agents may add fields; unknown ones are ignored, so that an older agent can still release a newer one's claims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from dra_agent.claim import ClaimDevice
from dra_agent.inventory.model import Device
from dra_agent.prepare.allocation import ClaimAllocation
from dra_agent.prepare.ledger import HeldDevice, LedgerEntry
from dra_agent.prepare.plan import SetupStep
from dra_agent.prepare.setup import Kind


class SetupRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A vendor set-up of the claim."""

    api_version: str
    kind: str
    devices: tuple[str, ...]
    """Keys of devices; the name of one that is not a share."""
    parameters: Any = None
    done: bool = False
    record: Any = None


class ClaimRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of a ledger entry."""

    devices: tuple[ClaimDevice, ...] = ()
    setups: tuple[SetupRecord, ...] = ()
    pod_claim_name: str | None = None
    config: str | None = None
    """The `digest` of this driver's configuration in the allocation; None in records of earlier agents."""
    ahead: bool = False
    """Prepared before its pod was bound, and not requested by the kubelet since: no container uses it."""
    pods: tuple[str, ...] = ()
    """UIDs of the pods that it was prepared for; empty if they are not known, as in records of earlier agents."""


def of_allocation(allocation: ClaimAllocation, steps: tuple[SetupStep, ...], *, ahead: bool = False) -> ClaimRecord:
    """Return the record of an allocation before any set-up."""
    return ClaimRecord(
        devices=allocation.devices,
        setups=tuple(
            SetupRecord(*step.setup.kind, tuple(device.key for device in step.devices), step.raw_parameters)
            for step in steps
        ),
        pod_claim_name=allocation.pod_claim_name,
        config=digest(allocation),
        ahead=ahead,
        pods=allocation.pods,
    )


def digest(allocation: ClaimAllocation) -> str:
    """Return a digest of this driver's configuration in an allocation; "" if there is none."""
    if not allocation.config:
        return ""
    import hashlib  # only claims with configuration need it

    entries = [(entry.requests, entry.parameters) for entry in allocation.config]
    return hashlib.sha256(msgspec.json.encode(entries, order="deterministic")).hexdigest()[:32]


def same_request(record: ClaimRecord, allocation: ClaimAllocation) -> bool:
    """Return whether a prepared claim has the same requests, shares and configuration as an allocation."""
    recorded = {item.key: msgspec.structs.replace(item, cdi_device_ids=()) for item in record.devices}
    requested = {item.key: item for item in allocation.devices}
    return recorded == requested and record.config in (None, digest(allocation))


def held_devices(allocation: ClaimAllocation, devices: dict[tuple[str, str], Device]) -> tuple[HeldDevice, ...]:
    """Return the devices that a claim holds in the ledger.

    A partition also holds a share of its parent device, named after the partition: several partitions can be held at a
    time, while the whole device cannot.
    """
    held = [_held(device) for device in allocation.devices]
    for device in allocation.devices:
        parent = devices[device.pool, device.device].identity.get("parent")
        if parent and not device.admin_access:
            held.append(HeldDevice(device.pool, parent, "", share_id=device.device, shared=True))
    return tuple(dict.fromkeys(held))


def same_devices(entry: LedgerEntry, allocation: ClaimAllocation) -> bool:
    """Return whether an entry has this allocation's devices."""

    def key(device: HeldDevice) -> tuple[str, str, str | None, bool]:
        return (device.pool, device.device, device.share_id, device.admin_access)

    recorded = {key(device) for device in entry.devices if device.request}
    return recorded == {key(_held(device)) for device in allocation.devices}


def read(entry: LedgerEntry) -> ClaimRecord | None:
    """Decode an entry's payload; None if this agent cannot."""
    try:
        return msgspec.convert(entry.payload, ClaimRecord)
    except msgspec.ValidationError:
        return None


def is_ahead(entry: LedgerEntry) -> bool:
    """Return whether a claim was prepared ahead, and the kubelet has not requested it since."""
    record = read(entry)
    return record is not None and record.ahead


def has_setups(entry: LedgerEntry) -> bool:
    """Return whether a claim has set-ups; True if its record cannot be read."""
    record = read(entry)
    return record is None or bool(record.setups)


def created_uuids(entries: Iterable[LedgerEntry]) -> dict[str, str]:
    """Return the UUIDs of partitions that set-ups have created for prepared claims, by name of the device.

    The inventory has none of them: such a partition is described as before its creation, so that its published form
    stays the same.
    """
    found: dict[str, str] = {}
    for entry in entries:
        has_setups = isinstance(entry.payload, dict) and entry.payload.get("setups")
        record = read(entry) if has_setups and entry.state == "completed" else None
        for step in () if record is None else record.setups:
            for key, created in step.record.items() if isinstance(step.record, dict) else ():
                if isinstance(created, dict) and isinstance(uuid := created.get("uuid"), str):
                    found[str(key).partition("/")[0]] = uuid
    return found


def pods(entry: LedgerEntry) -> frozenset[str]:
    """Return the UIDs of the pods that a claim was prepared for; empty if they are not known."""
    record = read(entry)
    return frozenset() if record is None else frozenset(record.pods)


def unknown_setups(entry: LedgerEntry, setups: Collection[Kind]) -> list[str] | None:
    """Return the kinds of an unreadable record that are not among `setups`; None if unknown.

    A newer agent may have written the record with the same names for kinds. An entry without payload has no set-ups,
    because the payload is written before they run.
    """
    if entry.payload is None:
        return []
    listed = entry.payload.get("setups", []) if isinstance(entry.payload, dict) else None
    if not isinstance(listed, list) or not all(isinstance(step, dict) for step in listed):
        return None
    kinds = [(step.get("api_version"), step.get("kind")) for step in listed]
    return [str(kind[1]) for kind in kinds if kind not in setups]


def _held(device: ClaimDevice) -> HeldDevice:
    return HeldDevice(
        device.pool,
        device.device,
        device.requests[0],
        device.share_id,
        device.admin_access,
        device.share_id is not None,
    )
