"""Finds the one claim whose work a device's values show.

A value belongs to a claim only if no other claim can cause a part of it: never a number that is not the claim's
(docs/adr/0055-no-estimated-telemetry-per-claim.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from dra_agent.claim import ClaimRef
from dra_agent.inventory.model import Device, Inventory, device_key
from dra_agent.prepare.ledger import LedgerEntry
from dra_agent.telemetry.model import AVERAGES, PARTITION_AVERAGES, UTILIZATION, DeviceSample

UTILIZATION_PERIOD_S = 1.0
"""The longest period of which a driver reports utilization (nvml.h, nvmlUtilization_t: 1/6 s to 1 s)."""

Holders = dict[str, ClaimRef]
"""The exclusive claim by name of a device."""


def exclusive_holders(entries: Iterable[LedgerEntry], inventory: Inventory) -> Holders:
    """Return the claim of each device that exactly one prepared claim holds alone.

    Claims with admin access hold nothing: they monitor devices of others. A claim that is not prepared yet counts as a
    holder for others, but is not returned.
    """
    by_key: dict[tuple[str, str], Device] = {(one.family, one.name): one for one in inventory.devices}
    found: dict[str, list[tuple[LedgerEntry, bool]]] = {}
    for entry in entries:
        for held in entry.devices:
            device = by_key.get(device_key(held.pool, held.device))
            if device is None or held.admin_access:
                continue
            is_alone = held.share_id is None and not held.shared and not device.allow_multiple_allocations
            found.setdefault(device.name, []).append((entry, is_alone))
    return {
        name: ClaimRef(holders[0][0].uid, holders[0][0].namespace, holders[0][0].name)
        for name, holders in found.items()
        if len(holders) == 1 and holders[0][1] and holders[0][0].state == "completed"
    }


def same_before_and_after(before: Holders, after: Holders) -> Holders:
    """Return the holders that held a device during a whole sample."""
    return {name: claim for name, claim in after.items() if before.get(name) == claim}


def recent_claims(entries: Iterable[LedgerEntry], now_unix_s: float) -> frozenset[str]:
    """Return the UIDs of claims that may have begun in the period of which drivers report utilization now."""
    return frozenset(
        entry.uid
        for entry in entries
        # Of a claim that an earlier agent recorded, the time is not known: it is a longer time ago.
        if entry.started_at is not None and entry.started_at > now_unix_s - UTILIZATION_PERIOD_S
    )


def average_utilization(inventory: Inventory, samples: Mapping[str, DeviceSample]) -> frozenset[str]:
    """Return the devices whose claims have a utilization that is an average since the sample before.

    Of a partition it is the device's own, and where the device has none, it is counted by process.
    """
    return frozenset(
        device.name
        for device in inventory.devices
        if device.name in samples
        and ("parent" in device.identity or samples[device.name].gpu_utilization_ratio is None)
    )


class AverageOwners:
    """Withholds values of a time before now from claims that have held their device for a shorter time.

    They are averages and reasons of throttling since the reading before, and utilization of the driver's last period.
    """

    def __init__(self) -> None:
        self._holders: Holders = {}
        """Of devices that were read in the sample before."""

    def withhold(
        self,
        holders: Holders,
        samples: Mapping[str, DeviceSample],
        inventory: Inventory,
        shares: Mapping[tuple[ClaimRef, str], DeviceSample],
        recent: Collection[str] = (),
    ) -> dict[tuple[ClaimRef, str], DeviceSample]:
        """Return `shares` with the values of such claims, which are those of their device without these values.

        `recent` are the UIDs of claims that may have begun in the driver's last period. To be called once for each
        sample: an average of a device that the sample before has not read may have begun with another claim.
        """
        partitions = {device.name for device in inventory.devices if "parent" in device.identity}
        found = dict(shares)
        for name, claim in holders.items():
            sample = found.get((claim, name), samples.get(name))
            if sample is None or self._holders.get(name) == claim:
                continue
            names = list(PARTITION_AVERAGES if name in partitions else (*AVERAGES, "throttle_reasons"))
            if claim.uid in recent and (of_device := samples.get(name)) is not None:
                # What is counted by process is of the claim alone.
                names += (one for one in UTILIZATION if getattr(of_device, one) is not None)
            absent: dict[str, Any] = dict.fromkeys(names)
            if (own := msgspec.structs.replace(sample, **absent)) != sample:
                found[claim, name] = own
        self._holders = {name: claim for name, claim in holders.items() if name in samples}
        return found
