"""Calls that are made within the library's process as a whole, because what they take or give cannot cross.

Structures of limits point to text, and processes come as objects of pynvml's own. Source: NVML's documentation.
"""

from __future__ import annotations

import os
from typing import Any


def has_memory_limits(module: Any) -> bool:
    """Tell whether the library has the calls."""
    try:
        module._nvmlGetFunctionPointer("nvmlDeviceSetMemoryLimits_v1")
    except module.NVMLError:
        return False
    return True


def set_memory_limits(module: Any, device: Any, cgroup: str, soft: int, hard: int) -> None:
    """Set what the processes of a cgroup (its full path) are guaranteed and may have at most, in bytes."""
    limits = module.c_nvmlSetMemoryLimits_v1_t(os.fsencode(cgroup), soft, hard)
    module.nvmlDeviceSetMemoryLimits_v1(device, limits)


def get_memory_limits(module: Any, device: Any, cgroup: str) -> tuple[int, int, int]:
    """Give guaranteed, most and used bytes."""
    limits = module.c_nvmlGetMemoryLimits_v1_t(os.fsencode(cgroup), 0, 0, 0)
    module.nvmlDeviceGetMemoryLimits_v1(device, limits)
    return limits.softLimit, limits.hardLimit, limits.currentUsed


def compute_processes(module: Any, device: Any) -> list[tuple[int, int | None]]:
    """Give the processes that compute on a GPU: number and bytes; None where the driver does not tell the amount."""
    return [(process.pid, process.usedGpuMemory) for process in module.nvmlDeviceGetComputeRunningProcesses(device)]


_OWN = (has_memory_limits, set_memory_limits, get_memory_limits, compute_processes)
CALLS = {call.__name__: call for call in _OWN}
