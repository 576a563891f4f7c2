"""Utilization by process of GPUs whose driver counts it for DRM: what each client used since the reading before.

amdgpu counts what is submitted through DRM: graphics, video and Vulkan. Work of ROCm goes through /dev/kfd and is not
counted (Umio-Yasuno/amdgpu_top#49), so a process that uses it has no value: `inventory.vendors.UncountedProcesses`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import msgspec

from dra_agent.device_setup.shares.owners import ProcessOwners
from dra_agent.host import Host
from dra_agent.inventory.model import Device, device_name
from dra_agent.inventory.vendors import gpu_vendor
from dra_agent.processes.containers import Place, place_of
from dra_agent.processes.stat import start_time
from dra_agent.telemetry.drm_clients import Client, DrmReader, UncountedError
from dra_agent.telemetry.process_use import MAX_EXCESS_SHARE, ProcessUse, exited

_NS = 1e-9


def make(host: Host) -> DrmProcesses:
    """Create the source."""
    return DrmProcesses(host)


class _Seen(msgspec.Struct):
    """A client, and the processes that have it open."""

    client: Client
    at_s: float
    places: tuple[Place, ...]


class _Reading(msgspec.Struct):
    began_s: float
    clients: dict[int, _Seen]
    uncounted: list[ProcessUse]


class DrmProcesses:
    """Reads whole GPUs by PCI address: partitions of one GPU have the same."""

    name = "drm-fdinfo"

    def __init__(self, host: Host, *, elapsed: Callable[[], float] = time.monotonic) -> None:
        """`elapsed` returns seconds of a clock that is never set."""
        self._host = host
        self._elapsed = elapsed
        self._before: dict[str, _Reading] = {}
        """By device."""

    def can_read(self, device: Device) -> bool:
        """Return whether a client's function is this device."""
        return "parent" not in device.identity and device.name == device_name("gpu", device.pci_address)

    def read(
        self, device: Device, owners: ProcessOwners, users: Callable[[], Collection[int]]
    ) -> tuple[ProcessUse, ...] | None:
        """Read the clients of the processes that may use the device for a claim."""
        before = self._before.pop(device.name, None)
        owners.check_visible()
        now = self._read(device, users())
        self._before[device.name] = now
        if before is None:
            return None
        uses = tuple(_uses(before, now))
        _keep_larger(before, now)
        return uses

    def _read(self, device: Device, pids: Collection[int]) -> _Reading:
        now = _Reading(self._elapsed(), {}, [])
        reader, proc = DrmReader(self._host.proc), self._host.proc
        vendor = gpu_vendor(device.vendor)
        uncounted = None if vendor is None else vendor.uncounted
        for pid in sorted(pids):
            started = start_time(pid, proc)
            place = place_of(proc, pid)
            if started is None or place is None:
                continue  # it has exited: its clients are gone
            try:
                clients = reader.clients(pid, place.pod_uid or place.cgroup)
                if uncounted is not None and (self._host.sysfs / uncounted.folder / str(pid)).is_dir():
                    raise UncountedError(uncounted.reason)
            except (FileNotFoundError, ProcessLookupError):
                continue
            except (OSError, UncountedError) as error:
                now.uncounted.append(ProcessUse((place,), None, reason=f"process {pid}: {error}"))
                continue
            except ValueError as error:
                reason = f"process {pid}: {error}"
                now.uncounted.append(ProcessUse((place,), None, reason=reason, is_impossible=True))
                continue
            clients = [client for client in clients if client.address == device.pci_address]
            # A process without a client that ends meanwhile, as shells start many, leaves nothing to attribute.
            if clients and start_time(pid, proc) != started:
                now.uncounted.append(ProcessUse((exited(pid),), None, reason=f"process {pid} has exited"))
                continue
            for client in clients:
                seen = now.clients.get(client.id)
                if seen is None:
                    now.clients[client.id] = _Seen(client, self._elapsed(), (place,))
                elif place not in seen.places:
                    seen.places = (*seen.places, place)
        return now

    def close(self) -> None:
        """Nothing is open."""


def _uses(before: _Reading, now: _Reading) -> list[ProcessUse]:
    found = list(now.uncounted)
    for number, seen in now.clients.items():
        old = before.clients.get(number)
        duration_s = seen.at_s - (before.began_s if old is None else old.at_s)
        engines: dict[str, float] = {}
        reason, impossible = "", ""
        for kind, engine in seen.client.engines.items():
            earlier = None if old is None else old.client.engines.get(kind)
            if engine.total is None:
                passed = duration_s * engine.capacity
                # A client that was not open before, or an engine that it had not used, began at 0.
                grown = (engine.busy - (earlier.busy if earlier is not None else 0)) * _NS
            elif earlier is None or earlier.total is None:
                reason = "a client has no earlier cycles to compare with"
                continue
            else:
                passed = float((engine.total - earlier.total) * engine.capacity)
                grown = float(engine.busy - earlier.busy)
            try:
                engines[kind] = _part(kind, grown, passed)
            except ValueError as error:
                # The values of other claims stay: a process must not be able to take them away.
                impossible = str(error)
        why = impossible or reason
        found.append(ProcessUse(seen.places, None if why else engines, reason=why, is_impossible=bool(impossible)))
    for number, seen in before.clients.items():
        if number not in now.clients:
            # What it did until it was closed is not known.
            found.append(ProcessUse(seen.places, None, reason="a process has closed the device, or has exited"))
    return found


def _part(kind: str, grown: float, passed: float) -> float:
    """Return the part of the time. Counters may go back, and catch up later (drm-usage-stats.rst): that counts 0."""
    if grown <= 0:
        return 0.0
    if passed <= 0 or grown > passed * (1 + MAX_EXCESS_SHARE):
        raise ValueError(f"a client has used engines of the kind {kind} for {grown:g} in {passed:g}")
    return min(grown / passed, 1.0)


def _keep_larger(before: _Reading, now: _Reading) -> None:
    """Keep counters that went back at their larger value, as drm-usage-stats.rst requires of readers."""
    for number, seen in now.clients.items():
        if (old := before.clients.get(number)) is None:
            continue
        larger = {
            kind: msgspec.structs.replace(engine, busy=earlier.busy)
            for kind, engine in seen.client.engines.items()
            if (earlier := old.client.engines.get(kind)) is not None and engine.busy < earlier.busy
        }
        seen.client = msgspec.structs.replace(seen.client, engines={**seen.client.engines, **larger})
