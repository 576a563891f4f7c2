"""Values of the gauges, read from the inventory, the ledger and the reclaim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from dra_agent import _native
from dra_agent.clock import wall_now
from dra_agent.conflicts import exclude, load_conflicts
from dra_agent.health.monitor import Summary
from dra_agent.inventory.api import Taint
from dra_agent.inventory.model import Device, Inventory, device_key
from dra_agent.metrics.allocatable import AllocatableTracker, FreeMemory, Held, Kind, product_of
from dra_agent.metrics.reclaim import ReclaimSnapshot, snapshot_of
from dra_agent.prepare.ledger import JournalLedger, LedgerEntry
from dra_agent.prepare.record import created_uuids
from dra_agent.prepare.record import read as read_record
from dra_agent.reclaim.announcements import taint_of
from dra_agent.reclaim.service import ReclaimService

STATES = ("free", "blocked", "prepared", "tainted", "unhealthy")
"""blocked: prepared devices leave too little of the counters it consumes. prepared: a claim holds it or a share."""

CLAIM_STATES = {"started": "preparing", "completed": "prepared"}
"""Label values by the state in the ledger."""


class DeviceInfo(msgspec.Struct, frozen=True):
    """One device."""

    name: str
    pool: str
    state: str
    """One of STATES; if several apply, the last of them."""
    uuid: str = ""
    product: str = ""
    family: str = ""


class ClaimGroup(msgspec.Struct, frozen=True):
    """Claims in one state."""

    count: int = 0
    oldest_s: float = 0.0
    """Seconds since the oldest was recorded; 0 if the ledger does not have the time."""


class DeviceTaint(msgspec.Struct, frozen=True):
    """A taint of a device. `cause` is its key without the driver's name."""

    device: str
    cause: str
    effect: str


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
    excluded: dict[str, int] = {}
    """Number of devices that are not published, by the code of the reason."""
    health: Summary = Summary()
    reclaim: ReclaimSnapshot | None = None
    node: str = ""
    allocatable: dict[Kind, int] = {}
    memory: dict[tuple[str, str], FreeMemory] = {}
    taints: tuple[DeviceTaint, ...] = ()
    claims: dict[str, ClaimGroup] = {}
    """Claims in the ledger by state; each of CLAIM_STATES."""


def collect(
    state_dir: Path,
    node: str,
    *,
    inventory: Inventory,
    health: Summary,
    ledger: JournalLedger | None,
    reclaim: ReclaimService | None,
    tracker: AllocatableTracker,
    driver: str,
) -> MetricsSnapshot:
    """Read the current values. An agent that is starting has no ledger and no reclaim yet.

    The caller keeps `tracker` between calls.
    """
    entries = [] if ledger is None else ledger.entries()
    held = _held(entries)
    saved = load_conflicts(state_dir)
    taint = None if reclaim is None else taint_of(reclaim.state, driver)
    leaving = taint is not None and taint.effect != "None"
    published = inventory if saved.published else exclude(inventory, saved.conflicts)
    unclaimable = (
        tuple(device.name for device in inventory.devices)
        if leaving
        else ()
        if saved.published
        else tuple(sorted(saved.conflicts.managers))
    )
    left = tracker.compute(inventory, held, unclaimable)
    created = created_uuids(entries)
    return MetricsSnapshot(
        devices=tuple(
            _info(device, node, held, left.blocked, created, tainted=leaving) for device in inventory.devices
        ),
        node=node,
        allocatable=left.devices,
        memory=left.memory,
        taints=_taints(inventory, taint),
        claims=_claims(entries),
        prepared_claims=sum(entry.state == "completed" for entry in entries),
        ledger_writable=ledger is None or ledger.report.not_writable is None,
        checkpoint_written=_checkpoint_time(state_dir / "ledger"),
        problems=len(inventory.problems),
        health=health,
        excluded=Counter(one.code for one in published.excluded),
        second_managers=Counter(saved.conflicts.managers.values()),
        reclaim=None if reclaim is None else snapshot_of(reclaim),
    )


def _held(entries: Sequence[LedgerEntry]) -> Held:
    """Return the devices of prepared claims, without admin access and without the parents of partitions."""
    devices: set[tuple[str, str]] = set()
    shares: dict[tuple[str, str], dict[str, int]] = {}
    for entry in entries:
        shared = False
        for held in entry.devices:
            # A partition also holds a share of its parent, with an empty request.
            if held.admin_access or not held.request:
                continue
            if held.share_id is None:
                devices.add(device_key(held.pool, held.device))
            else:
                shared = True
        record = read_record(entry) if shared else None
        for device in () if record is None else record.devices:
            if device.share_id is not None and not device.admin_access:
                consumed = shares.setdefault(device_key(device.pool, device.device), {})
                for name, amount in device.consumed_capacity.items():
                    consumed[name] = consumed.get(name, 0) + _native.quantity_value(amount)
    return Held(frozenset(devices), shares)


def _claims(entries: Sequence[LedgerEntry]) -> dict[str, ClaimGroup]:
    now = wall_now().timestamp()
    found = {state: ClaimGroup() for state in CLAIM_STATES.values()}
    for entry in entries:
        state = CLAIM_STATES.get(entry.state, entry.state)
        before = found.get(state, ClaimGroup())
        age = 0.0 if entry.started_at is None else max(0.0, now - entry.started_at)
        found[state] = ClaimGroup(before.count + 1, max(before.oldest_s, age))
    return found


def _taints(inventory: Inventory, reclaim: Taint | None) -> tuple[DeviceTaint, ...]:
    found: dict[DeviceTaint, None] = {}
    for device in inventory.devices:
        for taint in device.taints if reclaim is None else (reclaim, *device.taints):
            found[DeviceTaint(device.name, taint.key.rpartition("/")[2], taint.effect)] = None
    return tuple(found)


def _info(
    device: Device, node: str, held: Held, blocked: Collection[str], created: Mapping[str, str], *, tainted: bool
) -> DeviceInfo:
    key = (device.family, device.name)
    prepared = key in held.devices or key in held.shares
    state = "prepared" if prepared else "blocked" if device.name in blocked else "free"
    if tainted or any(taint.effect != "None" for taint in device.taints):
        state = "tainted"
    if device.health == "unhealthy":
        state = "unhealthy"
    return DeviceInfo(
        device.name,
        device.pool(node),
        state,
        uuid=device.identity.get("uuid") or created.get(device.name, ""),
        product=product_of(device),
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
