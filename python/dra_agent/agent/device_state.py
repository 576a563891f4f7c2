"""The current devices of the host: uevents and slow rescans → topology → inventory → health → slices.

Everything here may wait for disks and vendor libraries, so the agent calls it on a worker thread; reading what was
found last never waits.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from dra_agent.errors import AgentError
from dra_agent.health.issues import SETUP_FAILED
from dra_agent.health.monitor import Monitor
from dra_agent.health.published_health import DeviceHealthStore
from dra_agent.health.settings import HealthSettings
from dra_agent.host import Host
from dra_agent.inventory.collector import Collector
from dra_agent.inventory.mode_changes import ModeChanges
from dra_agent.inventory.model import Device, DeviceEvent, Inventory, ObservedIssue
from dra_agent.inventory.passthrough import VfioBindingStore
from dra_agent.inventory.settings import InventorySettings
from dra_agent.inventory.tracker import InventoryDiff, InventoryTracker, diff
from dra_agent.prepare.ledger import JournalLedger
from dra_agent.slices import CurrentSlices
from dra_agent.topology import LiveTopology, PciFunction, Uevent

log = logging.getLogger(__name__)

SHARING_DOWN = "sharing-down"
"""The cause if the mechanism that isolates the shares of a device does not run."""


class DeviceState:
    """The devices of one host and the slices that describe them."""

    def __init__(
        self,
        host: Host,
        settings: InventorySettings,
        *,
        node: str,
        driver: str,
        monitor: Monitor | None = None,
        bindings: VfioBindingStore | None = None,
        ledger: JournalLedger | None = None,
        computes_slices: bool = True,
    ) -> None:
        """Scan the host; raises PermanentError if sysfs is missing, UsageError if a rule can never work.

        `ledger`: of the claims that have devices of the host; None if none can have any.

        `computes_slices`: compute `slices`. The publisher of a cluster computes its own, from the devices that the
        conflict filter and a reclaim keep; a second set would be computed at every change and never read.
        """
        self.host = host
        self._current = CurrentSlices(node=node, driver=driver) if computes_slices else None
        self.mode_changes = ModeChanges()
        """Receives changes of partition modes from set-ups."""
        collector = Collector(host, settings, driver=driver, bindings=bindings, mode_changes=self.mode_changes)
        self._topology = LiveTopology(host)
        topology = self._topology.snapshot()
        self._functions = topology.relevant
        self._ledger = ledger
        self._tracker = InventoryTracker(collector, topology, self._held())
        self.monitor = monitor or Monitor(HealthSettings(), driver)
        self.published_health = DeviceHealthStore(node)
        self._reported: dict[str, str] = {}
        self._withheld = Inventory()
        """Devices that a reloaded rule excludes, as they were published before."""
        self._inventory = self.monitor.observe(self._tracker.inventory)
        self.published_health.publish(self._inventory)
        self._slices: list[dict[str, Any]] = []
        self._logged: set[str] = set()
        self._describe()

    @property
    def inventory(self) -> Inventory:
        """The last inventory, with the health of its devices."""
        return self._inventory

    @property
    def functions(self) -> tuple[PciFunction, ...]:
        """The PCI functions of the last scan that can be devices, also those that are excluded."""
        return self._functions

    def lookup(self, pool: str, name: str) -> Device | None:
        """Find a device of the inventory, or one that a reloaded rule excludes, because a claim may hold it."""
        return self._inventory.lookup(pool, name) or self._withheld.lookup(pool, name)

    def slices(self) -> list[dict[str, Any]]:
        """Return the ResourceSlices of the inventory; empty unless `computes_slices` was set."""
        return self._slices

    def refresh(self, events: list[Uevent], *, rescan: bool, everything: bool = True) -> InventoryDiff:
        """Read the PCI tree again where events point, or all of it, and describe the devices again.

        `everything`: describe all devices again, and not only those of the events: links, memory errors and other facts
        change without an event.
        """
        if rescan:
            if missed := self._topology.rescan():
                log.info("the host changed without an event", extra=msgspec.structs.asdict(missed))
        else:
            for event in events:
                self._topology.apply(event)
        topology = self._topology.snapshot()
        self._functions = topology.relevant
        touched = None if rescan or everything or self._is_scan_due() else topology.touched_by(events)
        self._tracker.refresh(topology, touched, held := self._held())
        faults = self._tracker.faults()
        if faults and touched is not None:
            # They are returned only once, and some require their device to be read again.
            touched = None
            self._tracker.refresh(topology, held=held)
        self.monitor.record_events(faults, self._tracker.inventory)
        observed = self.monitor.observe(self._as_reported(), self._tracker.kept)
        return self._update(observed, scanned=True, everything=touched is None)

    def _held(self) -> frozenset[str]:
        """Return the names of the devices that claims have."""
        entries = [] if self._ledger is None else self._ledger.entries()
        return frozenset(held.device for entry in entries for held in entry.devices)

    def _is_scan_due(self) -> bool:
        """Return True if a scan of everything is due, which `poll_events` checks while no kernel events arrive."""
        return self.monitor.observation_due() or self._tracker.lost_event_stream()

    def configure(self, inventory: InventorySettings, health: HealthSettings) -> InventoryDiff:
        """Apply changed rules and health settings to the known devices, and return the difference.

        Raises:
            UsageError: A rule can never work; nothing changed.
        """
        self._tracker.configure(inventory)
        self.monitor.configure(health)
        # Before the inventory: a claim that is being prepared must find its device at any moment.
        self._withheld = Inventory(devices=(*self._inventory.devices, *self._withheld.devices))
        change = self.refresh([], rescan=False)
        self._forget_withheld()
        return change

    def _forget_withheld(self) -> None:
        """Keep the devices that a rule excludes; drop those that are published again or were removed."""
        excluded = {exclusion.name for exclusion in self._inventory.excluded}
        known = {device.name: device for device in reversed(self._withheld.devices) if device.name in excluded}
        self._withheld = Inventory(devices=tuple(known.values()))

    def set_setup_failures(self, failing: Mapping[str, str]) -> InventoryDiff:
        """Set the failures of device set-ups, by device; a device that is not named works."""
        if self._reported == failing:
            return InventoryDiff()
        self._reported = dict(failing)
        return self._update(self.monitor.observe(self._as_reported()), scanned=False)

    def record_failed_setup(self, names: Collection[str], message: str) -> InventoryDiff:
        """Record that these devices could not be set up for a claim: they are tainted for a time."""
        devices = [device for device in self._tracker.inventory.devices if device.name in names]
        events = [DeviceEvent(device.pci_address, SETUP_FAILED, message, (device.name,)) for device in devices]
        return self._update(self.monitor.record_events(events, self._tracker.inventory), scanned=False)

    def record_completed_setup(self, names: Collection[str]) -> InventoryDiff:
        """Record that these devices were set up: an earlier failure is over."""
        return self._update(self.monitor.resolve(SETUP_FAILED, names, self._tracker.inventory), scanned=False)

    def _as_reported(self) -> Inventory:
        inventory = self._tracker.inventory
        if not self._reported:
            return inventory
        devices = (_with_failure(device, self._reported.get(device.name)) for device in inventory.devices)
        return msgspec.structs.replace(inventory, devices=tuple(devices))

    def poll_events(self) -> InventoryDiff:
        """Poll device events, rescan affected devices, and drop expired events."""
        faults = self._tracker.faults() if self._tracker.reports_events else []
        if not faults and self._tracker.lost_event_stream():
            # Events between the end of a vendor library and its restart are lost, so it is restarted at once.
            return self.refresh([], rescan=False)
        if self.monitor.observation_due():
            self.monitor.record_events(faults, self._tracker.inventory)
            return self.refresh([], rescan=False)
        if not faults and not self.monitor.due():
            return InventoryDiff()
        change = self._update(self.monitor.record_events(faults, self._tracker.inventory), scanned=False)
        return (self.refresh([], rescan=False) if faults else None) or change

    def _update(self, inventory: Inventory, *, scanned: bool, everything: bool = False) -> InventoryDiff:
        change = diff(self._inventory, inventory)
        self._inventory = inventory
        if self._withheld.devices and scanned:
            self._forget_withheld()
        self.published_health.publish(inventory, observed=everything)
        if change:
            self._describe()
            log.info(
                "devices changed",
                extra={
                    name: found
                    for name in ("added", "removed", "changed", "health")
                    if (found := getattr(change, name))
                },
            )
        return change

    def close(self) -> None:
        """Close the vendor libraries."""
        self._tracker.close()

    def _describe(self) -> None:
        logged = set()
        for problem in self.inventory.problems:
            logged.add(str(problem))
            if str(problem) not in self._logged:
                level = logging.ERROR if problem.severity == "error" else logging.WARNING
                log.log(level, problem.message, extra={"where": problem.where, "todo": problem.hint})
        if self._current is not None:
            logged |= self._compute_slices(self._current)
        self._logged = logged

    def _compute_slices(self, current: CurrentSlices) -> set[str]:
        """Compute the slices; returns the devices that are omitted, which are logged once."""
        try:
            desired = current.update(self.inventory)
        except AgentError as error:
            log.error("devices cannot be described", extra={"reason": str(error)})
            return set()
        self._slices = desired.slices
        refused = {str(problem) for problem in desired.problems}
        for problem in sorted(refused - self._logged):
            log.error("device left out", extra={"problem": problem})
        return refused


def _with_failure(device: Device, reason: str | None) -> Device:
    if reason is None:
        return device
    return msgspec.structs.replace(
        device,
        health="unhealthy",
        health_reason=device.health_reason or reason,
        issues=(*device.issues, ObservedIssue(SHARING_DOWN, reason)),
    )
