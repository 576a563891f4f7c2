"""Memory usage of each claim on its devices, from any available counter; unknown usage is reported as such."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dra_agent import _native
from dra_agent.deadline import Deadline
from dra_agent.device_setup.open_files import SEARCH_TIMEOUT_S, function_nodes, processes_holding
from dra_agent.device_setup.shares.limiter import DriverLimit, ShareLimitStore, cgroup_root
from dra_agent.device_setup.shares.owners import HeldShare, ProcessOwners, UnknownOwnerError
from dra_agent.errors import AgentError
from dra_agent.host import Host
from dra_agent.inventory.model import Device
from dra_agent.inventory.nvidia.nvml_client import acquire
from dra_agent.inventory.shares import offered_enforcement


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


class UsageReader:
    """Reads usage on one host, once; `close` releases NVML."""

    def __init__(
        self, host: Host, state_dir: Path, timeout: float, owners: ProcessOwners, *, is_sample: bool = False
    ) -> None:
        """`is_sample`: for telemetry. NVML is not started: usage that it counts is unknown while it does not run."""
        self._host = host
        self._grants = ShareLimitStore(state_dir / "limits")
        self._nvml = acquire(host.nvml, timeout)
        self._driver = DriverLimit(host.nvml, timeout)
        self._owners = owners
        self._is_sample = is_sample
        self._computing: dict[str, dict[int, int | None]] = {}
        self._users: dict[str, set[int] | str] = {}
        self._search_deadline: Deadline | None = None

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
        except (AgentError, OSError, UnknownOwnerError) as error:
            return Usage(limit, None, None, str(error), each)
        return Usage(limit, None, None, "usage is not available for this device type", each)

    def _by_driver(self, held: HeldShare, device: Device) -> int:
        root = cgroup_root(self._host.sysfs)
        grant = (self._grants.read(held.uid) or {}).get(held.key)
        folders = [root / name for name in (grant.cgroups if grant is not None else ())]
        uuid, about = device.identity["uuid"], self._lane(device)
        return sum(self._driver.get(uuid, about, folder).used for folder in folders if folder.is_dir())

    def _lane(self, device: Device) -> str:
        """Return the lane of calls to NVML: a sample must not delay the calls that prepare claims."""
        return f"telemetry of {device.name}" if self._is_sample else device.pci_address

    def _by_kernel(self, held: HeldShare, device: Device) -> int:
        root = cgroup_root(self._host.sysfs)
        region = device.identity.get("dmem", "")
        self._owners.check_visible()
        own: set[str] = set()
        problems: dict[str, str] = {}
        for pid, place in self._owners.places().items():
            problem = self._owners.problem(held, place)
            if problem is None:
                continue
            if not problem:
                if not place.cgroup:
                    raise UnknownOwnerError(f"process {pid} of the claim is in no cgroup of version 2")
                own.add(place.cgroup)
            elif place.cgroup:
                problems[place.cgroup] = problem
            elif pid in self._users_of(device):
                raise UnknownOwnerError(f"the owner of process {pid} is not known: {problem}")
        for name, problem in sorted(problems.items()):
            file = root / name / "dmem.current"
            if file.exists() and _amount(file, region):
                raise UnknownOwnerError(f"the owner of cgroup {name} is not known: {problem}")
        return sum(_amount(root / name / "dmem.current", region) for name in own)

    def _users_of(self, device: Device) -> set[int]:
        """Return the processes that may have the device open, as they were at the first call for it.

        Raises UnknownOwnerError, then and later, if the search is late: all searches share SEARCH_TIMEOUT_S.
        """
        address = device.pci_address
        if address not in self._users:
            if self._search_deadline is None:
                self._search_deadline = Deadline.of(SEARCH_TIMEOUT_S)
            holders = processes_holding(self._host, function_nodes(self._host, address), self._search_deadline)
            late = f"open files of {holders.unsearched} processes were not read in time"
            users = {*(holder.pid for holder in holders.found), *holders.unread}
            self._users[address] = late if holders.unsearched else users
        found = self._users[address]
        if isinstance(found, str):
            raise UnknownOwnerError(found)
        return found

    def _by_process(self, held: HeldShare, device: Device) -> int | None:
        self._owners.check_visible()
        uuid = device.identity["uuid"]
        if uuid not in self._computing:
            if not self._is_sample:
                self._nvml.start()
            about = self._lane(device)
            handle = self._nvml.call("nvmlDeviceGetHandleByUUID", uuid.encode(), about=about)
            self._computing[uuid] = dict(self._nvml.call("compute_processes", handle, about=about))
        amounts = []
        for pid, used in self._computing[uuid].items():
            place = self._owners.place_of(pid)
            if place is None or (problem := self._owners.problem(held, place)) is None:
                continue  # it has exited, or belongs to another claim
            if problem:
                raise UnknownOwnerError(f"the owner of process {pid} is not known: {problem}")
            amounts.append(used)
        known = [amount for amount in amounts if amount is not None]
        return sum(known) if len(known) == len(amounts) else None


def _amount(path: Path, region: str) -> int:
    for line in path.read_text().splitlines():
        name, _, amount = line.partition(" ")
        if name == region and amount.strip().isdecimal():
            return int(amount)
    return 0
