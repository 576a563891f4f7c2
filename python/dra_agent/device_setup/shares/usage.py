"""Memory usage of each claim on its devices, from any available counter; unknown usage is reported as such.

A process belongs to a claim by its cgroup, which names its pod, and by the pods for which the claim is reserved. A
container can choose neither, unlike its environment. If they are ambiguous, the usage of the claim is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from dra_agent import _native
from dra_agent.device_setup.containers import Place, place_of
from dra_agent.device_setup.open_files import nodes_of, processes_holding
from dra_agent.device_setup.shares.limiter import DriverLimit, ShareLimitStore, cgroup_root
from dra_agent.errors import AgentError
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.inventory.nvidia.nvml_client import acquire
from dra_agent.inventory.process_visibility import hidden_processes_reason
from dra_agent.inventory.shares import MEMORY, offered_enforcement
from dra_agent.prepare.ledger import LedgerEntry
from dra_agent.prepare.record import read


class HeldShare(msgspec.Struct, frozen=True):
    """A device, or a share of one, of a claim."""

    uid: str
    claim: str
    """"namespace/name"."""
    key: str
    consumed: str | None
    """Memory of a shared device that the scheduler allocated to it (a Quantity text)."""
    pool: str = ""
    pods: frozenset[str] | None = None
    """UIDs of the pods for which the claim is reserved; None if unknown."""
    pods_unknown: str = ""
    """Why they are unknown."""


class Usage(msgspec.Struct, frozen=True):
    """Memory of one claim on one device, in bytes."""

    limit: int | None
    """Its enforced limit; None without one."""
    used: int | None
    counted_by: str | None
    """None if it is not counted, or could not be read."""
    note: str | None = None
    limit_for: str | None = None
    """The unit to which `limit` applies: each "container" or each "process" of the claim, so several can use more."""


_LIMIT_SCOPE = {"nvml-cgroup": "container", "dmem": "container", "mps": "process"}


class _UnknownOwnerError(Exception):
    """A process uses the device, and its claim is ambiguous."""


class UsageReader:
    """Reads usage on one host, once; `close` releases NVML."""

    def __init__(
        self,
        host: Host,
        state_dir: Path,
        timeout: float,
        everything: Sequence[HeldShare],
        *,
        standalone: bool = False,
        is_sample: bool = False,
    ) -> None:
        """`everything` includes claims with admin access. `standalone`: claims have no pods.

        `is_sample`: for telemetry. NVML is not started, and the pods of claims may be incomplete, so the usage of a
        device is unknown while a pod that is in no claim uses it.
        """
        self._host = host
        self._grants = ShareLimitStore(state_dir / "limits")
        self._nvml = acquire(host.nvml, timeout)
        self._driver = DriverLimit(host.nvml, timeout)
        self._standalone = standalone
        self._is_sample = is_sample
        self._everything = everything
        self._computing: dict[str, dict[int, int | None]] = {}
        self._places: dict[int, Place] | None = None

    def close(self) -> None:
        """Close the library."""
        self._driver.close()
        self._nvml.close()

    def read(self, held: HeldShare, device: Device | None) -> Usage:
        """Return the usage of a claim on a device; unreadable values are unknown, with the reason."""
        if device is None:
            return Usage(None, None, None, "the device is not on this host")
        enforcement = offered_enforcement(device)
        limited = enforcement not in (None, "none") and held.consumed is not None
        limit = _native.quantity_value(held.consumed) if limited and held.consumed is not None else None
        each = _LIMIT_SCOPE.get(enforcement or "") if limited else None
        if self._is_sample and device.vendor == "nvidia" and not self._nvml.is_running:
            return Usage(limit, None, None, "NVML is not running", each)
        try:
            if enforcement == "nvml-cgroup":
                return Usage(limit, self._by_driver(held, device), "driver, per cgroup", limit_for=each)
            if enforcement == "dmem":
                return Usage(limit, self._by_kernel(held, device), "kernel, per cgroup", limit_for=each)
            if device.vendor == "nvidia" and device.identity.get("uuid") and "parent" not in device.identity:
                return Usage(limit, self._by_process(held, device), "driver, per process", limit_for=each)
        except (AgentError, OSError, _UnknownOwnerError) as error:
            return Usage(limit, None, None, str(error), each)
        return Usage(limit, None, None, "usage is not available for this device type", each)

    def _by_driver(self, held: HeldShare, device: Device) -> int:
        root = cgroup_root(self._host.sysfs)
        grant = (self._grants.read(held.uid) or {}).get(held.key)
        folders = [root / name for name in (grant.cgroups if grant is not None else ())]
        uuid = device.identity["uuid"]
        return sum(self._driver.get(uuid, device.pci_address, folder).used for folder in folders if folder.is_dir())

    def _by_kernel(self, held: HeldShare, device: Device) -> int:
        root = cgroup_root(self._host.sysfs)
        region = device.identity.get("dmem", "")
        self._check_visibility()
        own: set[str] = set()
        problems: dict[str, str] = {}
        user_pids: set[int] | None = None
        for pid, place in self._all_places().items():
            problem = self._ownership_problem(held, place)
            if problem is None:
                continue
            if not problem:
                if not place.cgroup:
                    raise _UnknownOwnerError(f"process {pid} of the claim is in no cgroup of version 2")
                own.add(place.cgroup)
            elif place.cgroup:
                problems[place.cgroup] = problem
            else:
                if user_pids is None:
                    nodes = nodes_of(self._host, device.pci_address)
                    user_pids = {holder.pid for holder in processes_holding(self._host, nodes)}
                if pid in user_pids:
                    raise _UnknownOwnerError(f"the owner of process {pid} is not known: {problem}")
        for name, problem in sorted(problems.items()):
            file = root / name / "dmem.current"
            if file.exists() and _amount(file, region):
                raise _UnknownOwnerError(f"the owner of cgroup {name} is not known: {problem}")
        return sum(_amount(root / name / "dmem.current", region) for name in own)

    def _by_process(self, held: HeldShare, device: Device) -> int | None:
        self._check_visibility()
        uuid = device.identity["uuid"]
        if uuid not in self._computing:
            if not self._is_sample:
                self._nvml.start()
            about = f"telemetry of {device.name}" if self._is_sample else device.pci_address
            handle = self._nvml.call("nvmlDeviceGetHandleByUUID", uuid.encode(), about=about)
            self._computing[uuid] = dict(self._nvml.call("compute_processes", handle, about=about))
        amounts = []
        for pid, used in self._computing[uuid].items():
            place = place_of(self._host.proc, pid)
            if place is None or (problem := self._ownership_problem(held, place)) is None:
                continue  # it has exited, or belongs to another claim
            if problem:
                raise _UnknownOwnerError(f"the owner of process {pid} is not known: {problem}")
            amounts.append(used)
        known = [amount for amount in amounts if amount is not None]
        return sum(known) if len(known) == len(amounts) else None

    def _check_visibility(self) -> None:
        if hidden := hidden_processes_reason(self._host):
            raise _UnknownOwnerError(f"the owners of processes that use it are not known: {hidden}")

    def _all_places(self) -> dict[int, Place]:
        if self._places is None:
            pids = _pids(self._host.proc)
            self._places = {pid: place for pid in pids if (place := place_of(self._host.proc, pid)) is not None}
        return self._places

    def _ownership_problem(self, held: HeldShare, place: Place) -> str | None:
        """Return "" if a user of the device belongs to this claim, None if not, otherwise why that is ambiguous."""
        if place.kind == "host":
            return None
        candidates = [one for one in self._everything if _device(one) == _device(held)]
        if place.kind == "pod":
            candidates = [one for one in candidates if one.pods is None or place.pod_uid in one.pods]
            if self._is_sample and not candidates:
                return "its pod may have joined a claim after that was prepared"
        if held not in candidates:
            return None
        if place.kind == "unknown":
            return place.reason
        if len(candidates) > 1:
            known = place.kind == "pod" and all(one.pods is not None for one in candidates)
            whose = "its pod" if known else "its container"
            return f"{whose} may use the device through several claims or requests"
        if self._standalone:
            return ""  # only this claim has the device, so a container that uses it has it from there
        if held.pods is None:
            return held.pods_unknown or "the pods of the claim are not known"
        return "" if place.kind == "pod" else "its cgroup names no pod"


def held_shares(
    entries: Iterable[LedgerEntry], pods: Mapping[str, frozenset[str] | str]
) -> list[tuple[HeldShare, bool]]:
    """Return the devices and shares of claims, and True for those that have an amount.

    `pods`: the UIDs of a claim's pods, or why they are unknown. A claim with admin access, and a claim whose record
    cannot be read, may use a device, but have no amount of it.
    """
    found = []
    for entry in entries:
        record = read(entry)
        users = pods.get(entry.uid, "")
        known, why = (None, users) if isinstance(users, str) else (users, "")
        name = f"{entry.namespace}/{entry.name}"
        if record is None:
            keys = [(item.key, item.pool) for item in entry.devices if item.request]
            found += [(HeldShare(entry.uid, name, key, None, pool, known, why), False) for key, pool in keys]
            continue
        for item in record.devices:
            consumed = item.consumed_capacity.get(MEMORY)
            found.append((HeldShare(entry.uid, name, item.key, consumed, item.pool, known, why), not item.admin_access))
    return found


def _device(held: HeldShare) -> tuple[str, str]:
    return (held.pool, held.key.partition("/")[0])


def _pids(proc: Path) -> Iterable[int]:
    try:
        return [int(path.name) for path in proc.iterdir() if path.name.isdecimal()]
    except OSError:
        return []


def _amount(path: Path, region: str) -> int:
    for line in path.read_text().splitlines():
        name, _, amount = line.partition(" ")
        if name == region and amount.strip().isdecimal():
            return int(amount)
    return 0
