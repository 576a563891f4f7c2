"""The gauges of one moment, read from the inventory and the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dra_agent import _native
from dra_agent.agent.config import Config
from dra_agent.agent.device_state import DeviceState
from dra_agent.agent.reclaim_runtime import ReclaimRuntime
from dra_agent.conflicts import load_conflicts
from dra_agent.health import Summary
from dra_agent.inventory import Device, Inventory, pool_name
from dra_agent.metrics.reclaim import snapshot_of
from dra_agent.metrics.registry import DeviceInfo, MetricsSnapshot
from dra_agent.prepare.ledger import JournalLedger


def collect(
    config: Config,
    hardware: DeviceState | None,
    ledger: JournalLedger | None,
    reclaiming: ReclaimRuntime | None = None,
) -> MetricsSnapshot:
    """Read what is known; an agent that is still starting knows little."""
    entries = [] if ledger is None else ledger.entries()
    held = {(device.pool, device.device) for entry in entries for device in entry.devices if not device.admin_access}
    inventory = Inventory() if hardware is None else hardware.inventory
    blocked = blocked_devices(inventory, config.node, held)
    return MetricsSnapshot(
        devices=tuple(_info(device, config.node, held, blocked) for device in inventory.devices),
        prepared_claims=sum(entry.state == "completed" for entry in entries),
        ledger_writable=ledger is None or ledger.report.not_writable is None,
        checkpoint_written=_newest(config.state_dir / "ledger"),
        problems=0 if hardware is None else len(hardware.inventory.problems),
        health=Summary() if hardware is None else hardware.monitor.summary,
        second_managers={
            who: len(names) for who, names in load_conflicts(config.state_dir).verdict.by_manager().items()
        },
        reclaim=None if reclaiming is None else snapshot_of(reclaiming.reclaim),
    )


def blocked_devices(inventory: Inventory, node: str, held: set[tuple[str, str]]) -> set[str]:
    """Name the devices for which prepared ones leave too little of the counters that they share."""
    left: dict[tuple[str, str, str], int] = {
        (family, counters.name, name): _native.quantity_value(counter.value)
        for family, sets in inventory.counter_sets.items()
        for counters in sets
        for name, counter in counters.counters.items()
    }
    for device in inventory.devices:
        if (pool_name(node, device.family), device.name) in held:
            for key, amount in _consumed(device):
                left[key] = left.get(key, 0) - amount
    return {
        device.name
        for device in inventory.devices
        if any(amount > left.get(key, 0) for key, amount in _consumed(device))
    }


def _consumed(device: Device) -> Iterator[tuple[tuple[str, str, str], int]]:
    for consumption in device.consumes_counters:
        for name, counter in consumption.counters.items():
            yield (device.family, consumption.counter_set, name), _native.quantity_value(counter.value)


def _info(device: Device, node: str, held: set[tuple[str, str]], blocked: set[str]) -> DeviceInfo:
    pool = pool_name(node, device.family)
    state = "prepared" if (pool, device.name) in held else "blocked" if device.name in blocked else "free"
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


def _newest(folder: Path) -> float | None:
    try:
        times = [
            file.stat().st_mtime
            for file in folder.iterdir()
            if file.name == "snapshot" or file.name.startswith("journal-")
        ]
    except OSError:
        return None
    return max(times, default=None)
