"""How much memory of its devices each claim has now, by whoever counts it; where nobody does, that is said.

Processes are a claim's by what their environment says, which the claim's CDI spec has put there. A process that has
changed its environment is nobody's.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from dra_agent import _native
from dra_agent.cdi.claim import variable
from dra_agent.errors import AgentError
from dra_agent.host import Host
from dra_agent.inventory.device import Device
from dra_agent.inventory.nvidia.library import shared
from dra_agent.inventory.shares import offered_enforcement
from dra_agent.setup.limits.cgroups import hierarchy
from dra_agent.setup.limits.driver_limit import DriverLimit
from dra_agent.setup.limits.grants import Grants

_DEVICE = b"DRA_AGENT_DEVICE_"


class Held(msgspec.Struct, frozen=True):
    """A device, or a share of one, that a claim holds."""

    uid: str
    claim: str
    """ "namespace/name"."""
    key: str
    consumed: str | None
    """Memory that the scheduler has given it of a shared device (a Quantity text)."""
    requests: tuple[str, ...]
    """Requests of the claim that it answers: another one may have another share of the same device."""


class Usage(msgspec.Struct, frozen=True):
    """Memory of one device that one claim has, in bytes."""

    limit: int | None
    """What it is held to; None where nobody holds it to anything."""
    used: int | None
    counted_by: str | None
    """None where nobody counts, or nobody could be asked."""
    note: str | None = None
    limit_for: str | None = None
    """Who has `limit` each: every "container" or every "process" of the claim, so that several have more together."""


_EACH = {"nvml-cgroup": "container", "dmem": "container", "mps": "process"}


class Meter:
    """Reads usage on one host, once; `close` lets go of NVML."""

    def __init__(self, host: Host, state_dir: Path, timeout: float, proc: Path = Path("/proc")) -> None:
        self._host = host
        self._grants = Grants(state_dir / "limits")
        self._nvml = shared(host.nvml_library, timeout)
        self._driver = DriverLimit(host.nvml_library, timeout)
        self._proc = proc
        self._processes = _processes(proc)
        self._computing: dict[str, dict[int, int | None]] = {}

    def close(self) -> None:
        """Let go of the library."""
        self._driver.close()
        self._nvml.close()

    def read(self, held: Held, device: Device | None) -> Usage:
        """Say what a claim has of a device; what cannot be read is unknown, with the reason."""
        if device is None:
            return Usage(None, None, None, "the device is not on this host now")
        enforcement = offered_enforcement(device)
        limited = enforcement not in (None, "none") and held.consumed is not None
        limit = _native.quantity_value(held.consumed) if limited and held.consumed is not None else None
        each = _EACH.get(enforcement or "") if limited else None
        try:
            if enforcement == "nvml-cgroup":
                return Usage(limit, self._by_driver(held, device), "driver, per cgroup", limit_for=each)
            if enforcement == "dmem":
                return Usage(limit, self._by_kernel(held, device), "kernel, per cgroup", limit_for=each)
            if device.vendor == "nvidia" and device.identity.get("uuid") and "parent" not in device.identity:
                return Usage(limit, self._by_process(held, device), "driver, per process", limit_for=each)
        except (AgentError, OSError) as error:
            return Usage(limit, None, None, str(error), each)
        return Usage(limit, None, None, "nobody counts it for such a device", each)

    def _by_driver(self, held: Held, device: Device) -> int:
        root = hierarchy(self._host.sysfs)
        grant = (self._grants.read(held.uid) or {}).get(held.key)
        folders = [root / name for name in (grant.cgroups if grant is not None else ())]
        uuid = device.identity["uuid"]
        return sum(self._driver.get(uuid, device.pci_address, folder).used for folder in folders if folder.is_dir())

    def _by_kernel(self, held: Held, device: Device) -> int:
        root = hierarchy(self._host.sysfs)
        region = device.identity.get("dmem", "")
        names = {_cgroup(self._proc, pid) for pid in self._pids(held, device)} - {None, ""}
        return sum(_amount(root / str(name) / "dmem.current", region) for name in names)

    def _by_process(self, held: Held, device: Device) -> int | None:
        uuid = device.identity["uuid"]
        if uuid not in self._computing:
            self._nvml.start()
            about = device.pci_address
            handle = self._nvml.call("nvmlDeviceGetHandleByUUID", uuid.encode(), about=about)
            self._computing[uuid] = dict(self._nvml.call("compute_processes", handle, about=about))
        amounts = [used for pid, used in self._computing[uuid].items() if pid in self._pids(held, device)]
        known = [amount for amount in amounts if amount is not None]
        return sum(known) if len(known) == len(amounts) else None

    def _pids(self, held: Held, device: Device) -> set[int]:
        name = variable(device.name)
        return {pid for one in held.requests for pid in self._processes.get((f"{held.claim}/{one}", name), ())}


def _processes(proc: Path) -> dict[tuple[str, str], set[int]]:
    """Give the processes of each request ("namespace/claim/request") and device variable ("GPU_0000_1B_00_0")."""
    found: dict[tuple[str, str], set[int]] = {}
    for folder in _numbered(proc):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for entry in environment:
            name, _, value = entry.partition(b"=")
            if name.startswith(_DEVICE):
                for request in value.decode(errors="replace").split(","):
                    key = (request, name[len(_DEVICE) :].decode(errors="replace"))
                    found.setdefault(key, set()).add(int(folder.name))
    return found


def _numbered(proc: Path) -> Iterable[Path]:
    try:
        return [path for path in proc.iterdir() if path.name.isdecimal()]
    except OSError:
        return []


def _cgroup(proc: Path, pid: int) -> str | None:
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    return next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)


def _amount(path: Path, region: str) -> int:
    for line in path.read_text().splitlines():
        name, _, amount = line.partition(" ")
        if name == region and amount.strip().isdecimal():
            return int(amount)
    return 0
