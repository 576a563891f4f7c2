"""Samples all devices at an interval, on separate threads.

Devices are read one after the other. One that takes too long is left behind on its thread, and is not read again until
that call returns; the others do not wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path

import msgspec

from dra_agent.clock import wall_now
from dra_agent.daemon_threads import DaemonExecutor
from dra_agent.errors import AgentError
from dra_agent.host import Host
from dra_agent.inventory.model import Device, Inventory
from dra_agent.prepare.ledger import LedgerEntry
from dra_agent.prepare.record import created_uuids
from dra_agent.supervisor import supervisor
from dra_agent.telemetry.accounting import Accounting, ClaimUsage, TelemetryFailure
from dra_agent.telemetry.claims import (
    AverageOwners,
    Holders,
    average_utilization,
    exclusive_holders,
    recent_claims,
    same_before_and_after,
)
from dra_agent.telemetry.device_reads import DeviceReads
from dra_agent.telemetry.model import DeviceSample, IncompleteError, TelemetrySource
from dra_agent.telemetry.plausibility import drop_impossible
from dra_agent.telemetry.process_reader import ProcessReader
from dra_agent.telemetry.shares import PROCESSES, MemoryByClaim, ShareReader, ShareSamples
from dra_agent.telemetry.sources.registry import SourceRegistry

log = logging.getLogger(__name__)

DEVICE_TIMEOUT_S = 3.0
"""Seconds for one device, before the next one is read on another thread."""
MAX_THREADS = 32
"""Devices that can hang at the same time while others are still read."""
STALE_AFTER_PERIODS = 3
"""Periods after which a sample is no longer a current value."""
CHECKS = ("counters", PROCESSES)
"""Failures with these names as source are found in the values of several samples, and of several processes."""


class TelemetrySnapshot(msgspec.Struct, frozen=True):
    """The current values."""

    samples: dict[str, DeviceSample] = {}
    """By device; one whose values are unknown is missing."""
    holders: Holders = {}
    """Claims whose values are those of their device."""
    shares: ShareSamples = {}
    """Values of claims that are not those of their device, where they are known: of shares, and counted by process."""
    usage: tuple[ClaimUsage, ...] = ()
    failures: tuple[TelemetryFailure, ...] = ()
    sources: tuple[str, ...] = ()
    """Names of sources that failures of this host can have."""
    sampled_at: float = 0.0
    """Seconds since boot."""
    period_s: float = 0.0
    """Between two samples: the interval, or the duration of this sample where it took longer."""


class Sampler:
    """Runs from `start` to `stop`; `snapshot` can be called from any thread, and never waits."""

    def __init__(
        self,
        host: Host,
        state_dir: Path,
        boot_id: str,
        interval_s: float,
        *,
        inventory: Callable[[], Inventory],
        entries: Callable[[], list[LedgerEntry]],
        xids: Callable[[], Mapping[str, int]] = dict,
        pods: Callable[[], Mapping[str, frozenset[str]]] = dict,
        standalone: bool = False,
        is_newest: Callable[[], bool] = lambda: True,
        now: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        device_timeout_s: float = DEVICE_TIMEOUT_S,
    ) -> None:
        """`now` returns seconds since boot, `xids` the XIDs of devices since the start, `pods` UIDs of pods by claim.

        Only the newest of several agents on a state directory samples.
        """
        self._sources = SourceRegistry(host)
        self._state_dir = state_dir
        self._boot_id = boot_id
        self._accounting: Accounting | None = None
        """None while another agent samples, which writes the file."""
        self._averages = AverageOwners()
        self._interval_s = interval_s
        self._inventory = inventory
        self._entries = entries
        self._xids = xids
        self._xids_before: dict[str, float] = {}
        """XIDs of earlier agents, as far as claims count them."""
        self._is_newest = is_newest
        self._now = now
        self._device_timeout_s = device_timeout_s
        self._threads = DaemonExecutor(MAX_THREADS, "telemetry")
        processes = ProcessReader(self._sources, self._threads, device_timeout_s)
        memory: DeviceReads[MemoryByClaim] = DeviceReads(self._threads, device_timeout_s, "memory by claim")
        self._shares = ShareReader(host, state_dir, pods, standalone=standalone, processes=processes, memory=memory)
        self._hung: dict[str, str] = {}
        """Devices whose read has not returned, with their source."""
        self._submitted: Future[None] | None = None
        """The last reader: until it runs, no thread is free for another one."""
        self._lock = threading.Lock()
        self._logged: set[TelemetryFailure] = set()
        self._snapshot = TelemetrySnapshot()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = supervisor().thread_loop("telemetry", self._run, self._stopping)

    def stop(self) -> None:
        """End it; a read that hangs is not waited for."""
        self._stopping.set()
        self._threads.shutdown()
        if self._thread is not None:
            self._thread.join(self._device_timeout_s)
        self._sources.close()

    def snapshot(self) -> TelemetrySnapshot:
        """Return the last sample; without values if it is too old."""
        snapshot = self._snapshot
        # The first hang of a device makes a sample longer by its timeout.
        if self._now() - snapshot.sampled_at > STALE_AFTER_PERIODS * snapshot.period_s + self._device_timeout_s:
            return TelemetrySnapshot(failures=snapshot.failures, sources=snapshot.sources)
        return snapshot

    def sample(self) -> None:
        """Read all devices once."""
        began_at = self._now()
        accounting = self._accounting = self._accounting or self._continued()
        inventory = self._inventory()
        entries_before = self._entries()
        recent = recent_claims(entries_before, wall_now().timestamp())
        before = exclusive_holders(entries_before, inventory)
        failures: list[TelemetryFailure] = []
        created = created_uuids(entries_before)
        samples = self._read(_with_uuids(inventory, created), failures)
        for device, count in self._xids().items():
            if (sample := samples.get(device)) is not None:
                xid_errors = count + self._xids_before.get(device, 0.0)
                samples[device] = msgspec.structs.replace(sample, xid_errors=xid_errors)
        shares = self._shares.read(entries_before, inventory, before, samples, failures)
        entries = self._entries()
        if entries != entries_before:
            # A claim that began or ended meanwhile may have a part of what was counted.
            shares = {}
            # The partition of a claim that ended was removed while it was read.
            removed = created.items() - created_uuids(entries).items()
            failures = [one for one in failures if (one.device, created.get(one.device)) not in removed]
        holders = same_before_and_after(before, exclusive_holders(entries, inventory))
        shares = self._averages.withhold(holders, samples, inventory, shares, recent)
        now = self._now()
        period_s = max(self._interval_s, now - began_at)
        averages = average_utilization(inventory, samples)
        for name, claim in holders.items():
            if (sample := samples.get(name)) is not None:
                own = shares.get((claim, name), sample)
                problems = accounting.add(claim, name, own, now, period_s, has_average=name in averages)
                failures += [TelemetryFailure("counters", name, problem) for problem in problems]
        # In every state: a claim is prepared again after a reboot, and keeps its counters.
        accounting.keep_only({entry.uid: {held.device for held in entry.devices} for entry in entries})
        self._report(failures)
        accounting.save(failures, now, period_s)
        sources = tuple(sorted({*CHECKS, *self._sources.loaded()}))
        usage = accounting.usage()
        self._snapshot = TelemetrySnapshot(samples, holders, shares, usage, tuple(failures), sources, now, period_s)

    def _continued(self) -> Accounting:
        """Load the counters of claims. XIDs count on from there: the agent itself counts them from 0."""
        accounting, counted = Accounting(self._state_dir, self._boot_id), self._xids()
        self._xids_before = {
            usage.device: usage.raw["xid_errors"][0] - counted.get(usage.device, 0)
            for usage in accounting.usage()
            if "xid_errors" in usage.raw
        }
        return accounting

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                if self._is_newest():
                    self.sample()
                else:
                    self._accounting, self._snapshot, self._averages = None, TelemetrySnapshot(), AverageOwners()
            except Exception:  # telemetry must continue after any error of one sample
                if not self._stopping.is_set():
                    log.exception("telemetry: a sample failed")
            self._stopping.wait(max(0.0, self._interval_s - (time.monotonic() - began)))

    def _read(self, devices: Iterable[Device], failures: list[TelemetryFailure]) -> dict[str, DeviceSample]:
        waiting: deque[tuple[Device, TelemetrySource]] = deque()
        with self._lock:
            hung = dict(self._hung)
        for device in devices:
            if device.name in hung:
                failures.append(TelemetryFailure(hung[device.name], device.name, "an earlier read has not returned"))
            elif (source := self._sources.source_of(device)) is not None:
                waiting.append((device, source))
        reader = _Reader(waiting)
        while reader.pending:
            late = None
            if self._submitted is None or self._submitted.running() or self._submitted.done():
                self._submitted = self._threads.submit(reader.run)
                late = reader.wait(self._device_timeout_s)
            if late is None:
                # All are read, or every thread hangs.
                for device, source in reader.take_waiting():
                    failures.append(TelemetryFailure(source.name, device.name, "no thread is free to read it"))
                break
            device, source = late
            failures.append(
                TelemetryFailure(source.name, device.name, f"no response within {self._device_timeout_s:g} s")
            )
            with self._lock:
                self._hung[device.name] = source.name
            reader.abandon(device, self._returned)
        failures += reader.failures
        return reader.samples

    def _returned(self, device: str) -> None:
        with self._lock:
            self._hung.pop(device, None)

    def _report(self, failures: list[TelemetryFailure]) -> None:
        new = {msgspec.structs.replace(failure, message="") for failure in failures}
        for failure in failures:
            if msgspec.structs.replace(failure, message="") not in self._logged:
                log.warning(
                    "telemetry of a device is incomplete",
                    extra={"source": failure.source, "device": failure.device, "reason": failure.message},
                )
        self._logged = new


def _with_uuids(inventory: Inventory, created: Mapping[str, str]) -> Iterator[Device]:
    """Yield the devices; partitions that exist for a claim only with the UUID that their set-up has recorded."""
    for device in inventory.devices:
        uuid = created.get(device.name)
        if uuid is not None and "uuid" not in device.identity:
            device = msgspec.structs.replace(device, identity={**device.identity, "uuid": uuid})
        yield device


class _Reader:
    """Reads a list of devices on one thread at a time."""

    def __init__(self, waiting: deque[tuple[Device, TelemetrySource]]) -> None:
        self._waiting = waiting
        self._changed = threading.Condition()
        self._current: tuple[Device, TelemetrySource] | None = None
        self._abandoned: dict[str, Callable[[str], None]] = {}
        self._progress = 0
        self.samples: dict[str, DeviceSample] = {}
        self.failures: list[TelemetryFailure] = []

    @property
    def pending(self) -> bool:
        """Whether devices are not read yet."""
        return bool(self._waiting) or self._current is not None

    def run(self) -> None:
        """Read the remaining devices, until all are read or this thread is abandoned."""
        while True:
            with self._changed:
                if not self._waiting:
                    return
                device, source = self._current = self._waiting.popleft()
            sample, failures = _read(device, source)
            with self._changed:
                if (returned := self._abandoned.pop(device.name, None)) is not None:
                    returned(device.name)
                    return
                if sample is not None:
                    self.samples[device.name] = sample
                self.failures += failures
                self._current = None
                self._progress += 1
                self._changed.notify()

    def take_waiting(self) -> list[tuple[Device, TelemetrySource]]:
        """Return the devices that no thread has begun to read; they are not read any more."""
        with self._changed:
            waiting = list(self._waiting)
            self._waiting.clear()
        return waiting

    def wait(self, timeout_s: float) -> tuple[Device, TelemetrySource] | None:
        """Wait until all are read, or one takes longer than the timeout: return it; None if no thread reads."""
        with self._changed:
            progress = -1
            while progress != self._progress:
                progress = self._progress
                self._changed.wait_for(lambda: not self.pending or self._progress != progress, timeout_s)  # noqa: B023
            return self._current

    def abandon(self, device: Device, returned: Callable[[str], None]) -> None:
        """Leave a device behind; `returned` is called when its read ends."""
        with self._changed:
            if self._current is not None and self._current[0] is device:
                self._abandoned[device.name] = returned
                self._current = None
                return
        returned(device.name)


def _read(device: Device, source: TelemetrySource) -> tuple[DeviceSample | None, list[TelemetryFailure]]:
    failures: list[TelemetryFailure] = []
    try:
        sample = source.read(device)
    except IncompleteError as error:
        sample, failures = error.sample, [TelemetryFailure(source.name, device.name, str(error))]
    except (AgentError, OSError, ValueError) as error:
        return None, [TelemetryFailure(source.name, device.name, str(error))]
    except Exception as error:  # a defect of one source must not take the values of others away
        log.exception("telemetry source failed", extra={"source": source.name, "device": device.name})
        return None, [TelemetryFailure(source.name, device.name, f"{type(error).__name__}: {error}")]
    if sample is None:
        return None, []
    sample, problems = drop_impossible(sample)
    return sample, failures + [TelemetryFailure(source.name, device.name, problem) for problem in problems]
