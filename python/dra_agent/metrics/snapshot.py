"""Values of the gauges, read from the inventory, the ledger and the reclaim."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from dra_agent import _native
from dra_agent.conflicts import load_conflicts
from dra_agent.health.monitor import Summary
from dra_agent.inventory.model import Device, Inventory, pool_name
from dra_agent.metrics.reclaim import ReclaimSnapshot, snapshot_of
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.reclaim.service import ReclaimService

STATES = ("free", "blocked", "prepared", "tainted", "unhealthy")
"""blocked: prepared devices leave too little of the counters that it consumes."""


class DeviceInfo(msgspec.Struct, frozen=True):
    """One device."""

    name: str
    pool: str
    state: str
    """One of STATES; if several apply, the last of them."""
    uuid: str = ""
    product: str = ""
    family: str = ""


class MetricsSnapshot(msgspec.Struct, frozen=True):
    """Values of the gauges at one time."""

    devices: tuple[DeviceInfo, ...] = ()
    prepared_claims: int = 0
    ledger_writable: bool = True
    checkpoint_written: float | None = None
    """Unix time of the newest record in the ledger."""
    problems: int = 0
    second_managers: dict[str, int] = {}
    """Number of devices of this node that another driver advertises, by driver."""
    health: Summary = Summary()
    reclaim: ReclaimSnapshot | None = None


def collect(
    state_dir: Path,
    node: str,
    *,
    inventory: Inventory,
    health: Summary,
    ledger: JournalLedger | None,
    reclaim: ReclaimService | None,
) -> MetricsSnapshot:
    """Read the current values. An agent that is starting has no ledger and no reclaim yet."""
    entries = [] if ledger is None else ledger.entries()
    prepared = {
        (device.pool, device.device) for entry in entries for device in entry.devices if not device.admin_access
    }
    blocked = blocked_devices(inventory, node, prepared)
    return MetricsSnapshot(
        devices=tuple(_info(device, node, prepared, blocked) for device in inventory.devices),
        prepared_claims=sum(entry.state == "completed" for entry in entries),
        ledger_writable=ledger is None or ledger.report.not_writable is None,
        checkpoint_written=_checkpoint_time(state_dir / "ledger"),
        problems=len(inventory.problems),
        health=health,
        second_managers={
            manager: len(devices) for manager, devices in load_conflicts(state_dir).verdict.by_manager().items()
        },
        reclaim=None if reclaim is None else snapshot_of(reclaim),
    )


def blocked_devices(inventory: Inventory, node: str, prepared: set[tuple[str, str]]) -> set[str]:
    """Return the names of devices for which prepared devices leave too little of the shared counters."""
    remaining: dict[tuple[str, str, str], int] = {
        (family, counters.name, name): _native.quantity_value(counter.value)
        for family, sets in inventory.counter_sets.items()
        for counters in sets
        for name, counter in counters.counters.items()
    }
    for device in inventory.devices:
        if (pool_name(node, device.family), device.name) in prepared:
            for key, amount in _consumed(device):
                remaining[key] = remaining.get(key, 0) - amount
    return {
        device.name
        for device in inventory.devices
        if any(amount > remaining.get(key, 0) for key, amount in _consumed(device))
    }


def _consumed(device: Device) -> Iterator[tuple[tuple[str, str, str], int]]:
    for consumption in device.consumes_counters:
        for name, counter in consumption.counters.items():
            yield (device.family, consumption.counter_set, name), _native.quantity_value(counter.value)


def _info(device: Device, node: str, prepared: set[tuple[str, str]], blocked: set[str]) -> DeviceInfo:
    pool = pool_name(node, device.family)
    state = "prepared" if (pool, device.name) in prepared else "blocked" if device.name in blocked else "free"
    if any(taint.effect != "None" for taint in device.taints):
        state = "tainted"
    if device.health == "unhealthy":
        state = "unhealthy"
    product = device.attributes.get("productName")
    return DeviceInfo(
        device.name,
        pool,
        state,
        uuid=device.identity.get("uuid", ""),
        product=(product.string if product is not None else None) or "",
        family=device.family,
    )


def _checkpoint_time(folder: Path) -> float | None:
    try:
        times = [
            file.stat().st_mtime
            for file in folder.iterdir()
            if file.name == "snapshot" or file.name.startswith("journal-")
        ]
    except OSError:
        return None
    return max(times, default=None)
