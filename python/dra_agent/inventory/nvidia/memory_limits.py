"""What could hold the users of one NVIDIA GPU to their memory, on this host with this driver."""

from __future__ import annotations

import shutil
from pathlib import Path

from dra_agent.host import Host

CONTROL = "nvidia-cuda-mps-control"


def memory_limits(host: Host, driver_limits: bool, *, mig: bool) -> dict[str, str]:
    """Give mechanisms and why they cannot be used, "" where they can; `driver_limits` is whether NVML has the call."""
    return {
        "mps": "" if find_mps_control(host) else f"{CONTROL} is not found",
        "nvml-cgroup": _cgroup(host, driver_limits, mig),
    }


def find_mps_control(host: Host) -> Path | None:
    """Find the program that runs MPS; on a simulated host it is beside the library, or there is none."""
    if host.nvml_library is not None:
        beside = host.nvml_library.with_name(CONTROL)
        return beside if beside.is_file() else None
    found = shutil.which(CONTROL) if host.dev == Path("/dev") else None
    return Path(found) if found else None


def _cgroup(host: Host, driver_limits: bool, mig: bool) -> str:
    if mig:
        return "the driver limits no MIG device so"
    if not driver_limits:
        return "this NVML has no nvmlDeviceSetMemoryLimits_v1"
    if not (host.sysfs / "fs/cgroup/cgroup.controllers").exists():
        return "the host has no unified cgroup hierarchy (version 2)"
    return ""
