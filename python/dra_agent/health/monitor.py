"""Combines observations and events into active issues. Used by one thread."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable

import msgspec

from dra_agent.clock import STEADY
from dra_agent.health import issues
from dra_agent.health.hysteresis import ActiveIssue, Confirmation, Grace, IssueTracker
from dra_agent.health.issues import HealthIssue
from dra_agent.health.settings import HealthSettings
from dra_agent.health.state_file import HealthStateFile
from dra_agent.health.taints import UnhealthyDevices
from dra_agent.inventory.model import STARTING, Device, DeviceEvent, Inventory, device_name
from dra_agent.inventory.vendors import gpu_vendor

_HOUR_S = 3600.0


class ErrorCounters:
    """One counter of each device."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._hours: dict[str, tuple[float, int]] = {}
        """Start of an hour, and the errors since then."""

    def more(self, device: str, count: int) -> bool:
        """Record a device's counter; return whether it grew. The first value is the baseline."""
        return self._growth(device, count) > 0

    def within_an_hour(self, device: str, count: int, now: float) -> int:
        """Record a device's counter; return its increase in the current hour."""
        began, errors = self._hours.get(device, (now, 0))
        if now - began >= _HOUR_S:
            began, errors = now, 0
        errors += max(0, self._growth(device, count))
        self._hours[device] = (began, errors)
        return errors

    def _growth(self, device: str, count: int) -> int:
        before = self._last.get(device, count)
        self._last[device] = count
        return count - before


log = logging.getLogger(__name__)


class Summary(msgspec.Struct, frozen=True):
    """Counters of the whole host."""

    devices: dict[str, int] = {}
    """By cause: for how many devices it counts now."""
    causes: tuple[tuple[str, str], ...] = ()
    """Device and cause, of everything that counts now."""
    happened: dict[str, int] = {}
    """Number of starts and events by issue."""
    suppressed: int = 0
    """Number of recurrences of a cause while it was active."""


class Monitor:
    """The health of one host's devices."""

    def __init__(
        self,
        settings: HealthSettings,
        driver: str,
        record: HealthStateFile | None = None,
        clock: Callable[[], float] = STEADY.unix,
    ) -> None:
        self._settings = settings
        self._driver = driver
        self._record = record
        self._clock = clock
        known = record.read() if record is not None else []
        for active in known:
            if not active.happened:
                # No observation while no agent ran: it counts as observed now.
                active.last = clock()
        self._tracker = IssueTracker(settings, known)
        self._confirmation = Confirmation()
        self._grace = Grace(settings)
        self._unhealthy = UnhealthyDevices()
        self._uncorrected, self._corrected = ErrorCounters(), ErrorCounters()
        self._known: set[str] = {active.device for active in known}
        self._observed_once = False
        self._happened: Counter[str] = Counter()
        self._xids: dict[str, int] = {}
        self._reporting: frozenset[str] = frozenset()
        self._summary = Summary()

    @property
    def summary(self) -> Summary:
        """Everything in numbers; may be read on any thread."""
        return self._summary

    @property
    def xids(self) -> dict[str, int]:
        """XIDs of each device that reports them, since the start; may be read on any thread.

        An XID of a GPU is not one of its partitions: which of them caused it is not known.
        """
        counts = self._xids
        return {device: counts.get(device, 0) for device in self._reporting}

    def observe(self, inventory: Inventory, kept: Container[str] = ()) -> Inventory:
        """Record the issues that the inventory shows, and return it with the issues that apply.

        `kept`: names of devices that were not observed again, so that nothing new is known of them.
        """
        now = self._clock()
        changed = False
        for device in inventory.devices:
            if device.name in kept:
                continue
            active_issues = self._tracker.of(device.name)
            before = {active.cause.name for active in active_issues}
            # A library that does not respond, or lacks the device, gives no information on earlier issues.
            blind = device.health == "unmonitored" or not device.observed
            counting = [active.cause for active in active_issues]
            started = self._grace.without_starting(device.name, issues.of_device(device), before, now, blind=blind)
            shown = self._confirmation.with_confirmation(device.name, started, counting, now, blind=blind)
            if self._tracker.observe(device.name, shown, now, first=not self._observed_once, blind=blind):
                changed = True
                self._begun(device.name, [cause for cause in shown if cause.name not in before])
            changed |= self._count_errors(device, now)
        self._reporting = frozenset(device.name for device in inventory.devices if _reports_xids(device))
        here = {device.name for device in inventory.devices}
        for gone in {active.device for active in self._tracker} - here:
            self._tracker.observe(gone, [], now)
            self._confirmation.forget([gone])
            self._grace.forget([gone])
        self._observed_once = True
        return self._kept(inventory, now, changed=changed)

    def record_events(self, faults: Iterable[DeviceEvent], inventory: Inventory) -> Inventory:
        """Record events, and return the inventory with the issues that apply."""
        now = self._clock()
        changed = False
        for fault in faults:
            if not fault.cause:
                continue
            if issues.xid(fault.cause) is not None:
                self._count_xid(fault, inventory)
            cause = issues.of_fault(fault.cause, fault.message, self._settings)
            if cause is None:
                log.info("a fault that programs cause", extra={"device": fault.pci_address, "fault": fault.message})
                continue
            named = [] if issues.concerns_whole_gpu(cause.name, self._settings) else fault.devices
            for device in inventory.devices:
                if device.name in named or (not named and device.pci_address == fault.pci_address):
                    changed |= self._happen(device.name, cause, now)
        return self._kept(inventory, now, changed=changed)

    def resolve(self, cause: str, devices: Iterable[str], inventory: Inventory) -> Inventory:
        """End an issue of these devices at once, and return the inventory with the issues that apply."""
        resolved = [self._tracker.resolve(device, cause) for device in devices]
        return self._kept(inventory, self._clock(), changed=any(resolved))

    def configure(self, settings: HealthSettings) -> None:
        """Use other settings from the next observation on; issues that are active stay active until they end."""
        self._settings = settings
        self._tracker.configure(settings)
        self._grace.configure(settings)

    def due(self) -> bool:
        """Return whether an issue was absent for long enough to end."""
        return self._tracker.due(self._clock())

    def observation_due(self) -> bool:
        """Return whether an observation is needed now to confirm a fatal issue."""
        return self._confirmation.due(self._clock())

    def active_issues(self, device: str) -> list[ActiveIssue]:
        """Return the issues that apply to a device, the most severe first."""
        return self._tracker.of(device)

    def _count_xid(self, fault: DeviceEvent, inventory: Inventory) -> None:
        whole = (device_name("gpu", fault.pci_address),)
        devices = [device.name for device in inventory.devices if device.name in (fault.devices or whole)]
        if len(devices) == 1:
            self._xids = {**self._xids, devices[0]: self._xids.get(devices[0], 0) + 1}

    def _count_errors(self, device: Device, now: float) -> bool:
        found = False
        if device.memory_errors is not None and self._uncorrected.more(device.name, device.memory_errors):
            cause = HealthIssue("ecc", issues.severity("ecc"), "uncorrected memory errors")
            found = self._happen(device.name, cause, now)
        limit = self._settings.corrected_errors_per_hour
        if limit and device.corrected_errors is not None:
            many = self._corrected.within_an_hour(device.name, device.corrected_errors, now)
            if many >= limit:
                message = f"{limit} or more corrected memory errors within an hour"
                cause = HealthIssue("ecc-corrected", issues.severity("ecc-corrected"), message)
                found |= self._happen(device.name, cause, now)
        return found

    def _happen(self, device: str, cause: HealthIssue, now: float) -> bool:
        if self._tracker.record_event(device, cause, now):
            self._begun(device, [cause])
        else:
            self._happened[cause.name] += 1
        # Kept in any case: it counts from when it happened last.
        return True

    def _begun(self, device: str, began: list[HealthIssue]) -> None:
        for cause in began:
            self._happened[cause.name] += 1
            if cause.name == STARTING:
                continue
            log.warning(
                "device failed" if cause.severity else "device is not monitored",
                extra={"device": device, "cause": cause.name, "reason": cause.message},
            )

    def _kept(self, inventory: Inventory, now: float, *, changed: bool) -> Inventory:
        # Last, so that an issue that recurs at its end stays active.
        changed |= self._tracker.end(now)
        devices = {active.device for active in self._tracker}
        for device in self._known - devices:
            log.info("device has recovered", extra={"device": device})
        self._known = devices
        counts = Counter(active.cause.name for active in self._tracker)
        issues = tuple(sorted({(active.device, active.cause.name) for active in self._tracker}))
        self._summary = Summary(dict(counts), issues, dict(self._happened), self._tracker.suppressed)
        if changed and self._record is not None:
            self._record.write(list(self._tracker))
        return self._unhealthy.apply(inventory, self._settings, self._driver, self._tracker.of)


def _reports_xids(device: Device) -> bool:
    """Whether XIDs of a device are read now."""
    if device.family != "gpu" or not device.observed or device.health == "unmonitored":
        return False
    vendor = gpu_vendor(device.vendor)
    return vendor is not None and vendor.reports_xids
