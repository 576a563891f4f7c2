"""Values of claims that are not those of their device: memory and utilization of shares, counted by process.

They belong to a claim by the pod that the cgroup of each process names. If one of the processes that use a device may
be of any other claim, no claim of this device has a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import msgspec

from dra_agent.claim import ClaimRef
from dra_agent.device_setup.shares.owners import HeldShare, ProcessOwners, UnknownOwnerError, held_shares
from dra_agent.device_setup.shares.usage import UsageReader
from dra_agent.host import Host
from dra_agent.inventory.model import Device, Inventory, device_key
from dra_agent.prepare.ledger import LedgerEntry
from dra_agent.telemetry.accounting import TelemetryFailure
from dra_agent.telemetry.claims import Holders
from dra_agent.telemetry.device_reads import DeviceReads, LateReadError
from dra_agent.telemetry.model import GAUGES, DeviceSample
from dra_agent.telemetry.process_reader import ProcessReader
from dra_agent.telemetry.process_use import of_claim

CALL_TIMEOUT_S = 2.0
PROCESSES = "processes"
"""Names failures of what is counted by process or cgroup."""
UNKNOWN_PODS = "the pods of the claim are not known"

ShareSamples = dict[tuple[ClaimRef, str], DeviceSample]
"""Values by claim and name of the device."""
MemoryByClaim = dict[str, int | None]
"""Bytes by UID of the claim; None: not known."""


class ShareReader:
    """Reads the values of shares; used by one thread."""

    def __init__(
        self,
        host: Host,
        state_dir: Path,
        pods: Callable[[], Mapping[str, frozenset[str]]],
        *,
        standalone: bool,
        processes: ProcessReader | None = None,
        memory: DeviceReads[MemoryByClaim] | None = None,
    ) -> None:
        """`pods` returns the UIDs of the pods of claims. `standalone`: claims have no pods.

        `memory` reads the memory of shares; None: on this thread.
        """
        self._host = host
        self._state_dir = state_dir
        self._pods = pods
        self._standalone = standalone
        self._processes = processes
        self._memory = memory

    def read(
        self,
        entries: Sequence[LedgerEntry],
        inventory: Inventory,
        exclusive: Holders,
        samples: Mapping[str, DeviceSample],
        failures: list[TelemetryFailure],
    ) -> ShareSamples:
        """Return the values of prepared claims on devices that they do not hold alone.

        A claim that does hold its device alone has a value if its driver reports utilization by process only: then it
        has all `samples` of the device too.
        """
        known = self._pods()
        pods = {entry.uid: known.get(entry.uid, UNKNOWN_PODS) for entry in entries}
        holdings = held_shares(entries, {} if self._standalone else pods)
        owners = ProcessOwners(self._host, [held for held, _ in holdings], standalone=self._standalone, is_sample=True)
        claims = {entry.uid: ClaimRef(entry.uid, entry.namespace, entry.name) for entry in entries}
        prepared = {entry.uid for entry in entries if entry.state == "completed"}
        devices: dict[tuple[str, str], Device] = {(one.family, one.name): one for one in inventory.devices}
        by_device: dict[tuple[str, str], list[HeldShare]] = {}
        for held, has_amount in holdings:
            key = device_key(held.pool, held.key.partition("/")[0])
            if key in devices and held.uid in prepared and has_amount:
                by_device.setdefault(key, []).append(held)
        found: ShareSamples = {}
        for key, shares in by_device.items():
            device = devices[key]
            sample = samples.get(device.name)
            is_exclusive = device.name in exclusive
            if is_exclusive and (sample is None or sample.gpu_utilization_ratio is not None):
                continue
            work = self._work(device, shares, owners, sample, failures)
            counts = Counter(one.uid for one in shares)
            # Of several shares of one claim, the sum is not counted.
            single = [held for held in shares if counts[held.uid] == 1]
            alone = sample if is_exclusive and sample is not None else None
            used = {} if alone is not None else self._used(device, single, owners, failures)
            for held in single:
                own = alone or DeviceSample(memory_used_bytes=used.get(held.uid))
                merged = _with_work(own, work.get(held.uid, DeviceSample()))
                if merged != (alone or DeviceSample()):
                    found[claims[held.uid], device.name] = merged
        return found

    def _used(
        self, device: Device, shares: Sequence[HeldShare], owners: ProcessOwners, failures: list[TelemetryFailure]
    ) -> MemoryByClaim:
        """Return the bytes in use by UID of the claim, as far as they are known."""

        def read() -> MemoryByClaim:
            # For this device alone: a read that hangs keeps its reader.
            reader = UsageReader(self._host, self._state_dir, CALL_TIMEOUT_S, owners, is_sample=True)
            try:
                # A limit is one of each container or process, so several can use more.
                return {held.uid: reader.read(held, device).used for held in shares}
            finally:
                reader.close()

        if self._memory is None or not shares:
            return read()
        try:
            return self._memory.run(device.name, read)
        except CancelledError:  # the agent stops
            return {}
        except LateReadError as error:
            failures.append(TelemetryFailure(PROCESSES, device.name, str(error)))
            return {}

    def _work(
        self,
        device: Device,
        shares: Sequence[HeldShare],
        owners: ProcessOwners,
        sample: DeviceSample | None,
        failures: list[TelemetryFailure],
    ) -> dict[str, DeviceSample]:
        """Return the utilization by UID of the claim, as far as it is known."""
        if self._processes is None:
            return {}

        def users() -> Collection[int]:
            return [
                pid
                for pid, place in owners.places().items()
                if any(owners.problem(held, place) is not None for held in shares)
            ]

        uses = self._processes.read(device, owners, users, failures)
        if uses is None:
            return {}
        found = {}
        for held in shares:
            try:
                found[held.uid] = of_claim(held, uses, owners, sample.gpu_utilization_ratio if sample else None)
            except UnknownOwnerError:
                continue
            except ValueError as error:
                failure = TelemetryFailure(PROCESSES, device.name, str(error))
                if failure not in failures:  # of a process that may be of several claims
                    failures.append(failure)
        return found


def _with_work(sample: DeviceSample, work: DeviceSample) -> DeviceSample:
    """Add the values of `work` that are known."""
    values: dict[str, Any] = {name: value for name in GAUGES if (value := getattr(work, name)) is not None}
    return msgspec.structs.replace(sample, **values)
