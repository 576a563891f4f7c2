"""What the ledger keeps of a claim besides its devices: enough to rebuild its CDI spec and to undo its set-ups.

Newer agents may add fields; unknown ones are ignored, so that an older agent can still release a newer one's claims.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from dra_agent.inventory.model import Device
from dra_agent.prepare.allocation import AllocatedDevice, ClaimAllocation
from dra_agent.prepare.ledger_types import HeldDevice, LedgerEntry
from dra_agent.prepare.plan import SetupStep
from dra_agent.prepare.setup import Kind, key_of


class DeviceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device as the claim was given it."""

    pool: str
    device: str
    requests: tuple[str, ...]
    share_id: str | None = None
    admin_access: bool = False
    consumed_capacity: dict[str, str] = {}
    cdi_device_ids: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    """Requests as the allocation names them, where that is with a subrequest ("gpus/h100"); else empty."""

    @property
    def key(self) -> str:
        """Name it among the devices of its claim, as set-ups do."""
        return key_of(self.device, self.share_id)


class SetupRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A vendor set-up of the claim."""

    api_version: str
    kind: str
    devices: tuple[str, ...]
    """Keys of devices; the name of one that is no share."""
    parameters: Any = None
    done: bool = False
    record: Any = None


class ClaimRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of a ledger entry."""

    devices: tuple[DeviceRecord, ...] = ()
    setups: tuple[SetupRecord, ...] = ()
    pod_claim_name: str | None = None
    config: str | None = None
    """What `digest` makes of this driver's configuration in the allocation; None: an earlier agent kept none."""


def of_allocation(allocation: ClaimAllocation, steps: tuple[SetupStep, ...]) -> ClaimRecord:
    """Write down an allocation before anything is done for it."""
    return ClaimRecord(
        devices=_devices(allocation),
        setups=tuple(
            SetupRecord(*step.setup.kind, tuple(device.key for device in step.devices), step.raw_parameters)
            for step in steps
        ),
        pod_claim_name=allocation.pod_claim_name,
        config=digest(allocation),
    )


def _devices(allocation: ClaimAllocation) -> tuple[DeviceRecord, ...]:
    return tuple(
        DeviceRecord(
            device.pool,
            device.device,
            device.requests,
            device.share_id,
            device.admin_access,
            dict(device.consumed_capacity or {}),
            results=device.results if device.results != device.requests else (),
        )
        for device in allocation.devices
    )


def digest(allocation: ClaimAllocation) -> str:
    """Name this driver's configuration of an allocation, so that another one has another name; "" is none."""
    if not allocation.config:
        return ""
    import hashlib  # of which only claims with configuration need anything

    entries = [(entry.requests, entry.parameters) for entry in allocation.config]
    return hashlib.sha256(msgspec.json.encode(entries, order="deterministic")).hexdigest()[:32]


def same_request(record: ClaimRecord, allocation: ClaimAllocation) -> bool:
    """Tell whether a claim that is prepared was for the same requests, shares and configuration as an allocation."""
    recorded = {item.key: msgspec.structs.replace(item, cdi_device_ids=()) for item in record.devices}
    wanted = {item.key: item for item in _devices(allocation)}
    return recorded == wanted and record.config in (None, digest(allocation))


def held_devices(allocation: ClaimAllocation, devices: dict[tuple[str, str], Device]) -> tuple[HeldDevice, ...]:
    """Say what a claim takes in the ledger.

    A partition also takes a share of the whole device that it is a part of, under its own name: so neighbours live
    side by side, and nobody gets the whole device meanwhile.
    """
    held = [_held(device) for device in allocation.devices]
    for device in allocation.devices:
        parent = devices[device.pool, device.device].identity.get("parent")
        if parent and not device.admin_access:
            held.append(HeldDevice(device.pool, parent, "", share_id=device.device, shared=True))
    return tuple(dict.fromkeys(held))


def same_devices(entry: LedgerEntry, allocation: ClaimAllocation) -> bool:
    """Tell whether an entry was made for this allocation's devices."""

    def key(device: HeldDevice) -> tuple[str, str, str | None, bool]:
        return (device.pool, device.device, device.share_id, device.admin_access)

    recorded = {key(device) for device in entry.devices if device.request}
    return recorded == {key(_held(device)) for device in allocation.devices}


def read(entry: LedgerEntry) -> ClaimRecord | None:
    """Read an entry's payload; None where it is not ours to understand."""
    try:
        return msgspec.convert(entry.payload, ClaimRecord)
    except msgspec.ValidationError:
        return None


def has_setups(entry: LedgerEntry) -> bool:
    """Tell whether anything was set up for a claim, as far as its record can be read; True where it cannot."""
    record = read(entry)
    return record is None or bool(record.setups)


def unknown_setups(entry: LedgerEntry, setups: Collection[Kind]) -> list[str] | None:
    """Name the kinds in a record that cannot be read which are not among `setups`; None where nobody can tell.

    A newer agent may have written the record: what it calls a set-up by the old names is still known by them. Where
    there is no record at all, nothing was set up: it is written before.
    """
    if entry.payload is None:
        return []
    listed = entry.payload.get("setups", []) if isinstance(entry.payload, dict) else None
    if not isinstance(listed, list) or not all(isinstance(step, dict) for step in listed):
        return None
    kinds = [(step.get("api_version"), step.get("kind")) for step in listed]
    return [str(kind[1]) for kind in kinds if kind not in setups]


def _held(device: AllocatedDevice) -> HeldDevice:
    return HeldDevice(
        device.pool,
        device.device,
        device.requests[0],
        device.share_id,
        device.admin_access,
        device.share_id is not None,
    )
