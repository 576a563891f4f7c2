"""The memory limit that NVIDIA's driver has for the processes of a cgroup (CUDA 13.4 and later)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from dra_agent.inventory.nvidia.nvml_client import NvmlClient, acquire


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """Memory of one GPU, as the driver counts it for a cgroup, in bytes; no limit is None."""

    limit: int | None
    used: int


class DriverLimit:
    """Limits by cgroup, through NVML. Every method raises RetryableError where that fails."""

    def __init__(self, library: Path | None, timeout: float) -> None:
        self._library = library
        self._timeout = timeout
        self._nvml: NvmlClient | None = None

    def set(self, uuid: str, address: str, cgroup: Path, amount: int) -> None:
        """Guarantee a cgroup this amount, and hold it to it: the scheduler gives out no more than there is."""
        self._call("set_memory_limits", uuid, address, cgroup, amount, amount)

    def get(self, uuid: str, address: str, cgroup: Path) -> CgroupMemory:
        """Say what a cgroup may have, and has."""
        _, limit, used = self._call("get_memory_limits", uuid, address, cgroup)
        return CgroupMemory(None if limit == self._module.NVML_DEVICE_MEMORY_LIMIT_MAX else limit, used)

    def close(self) -> None:
        """Let go of the library."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    @property
    def _module(self) -> ModuleType:
        assert self._nvml is not None
        return self._nvml.module

    def _call(self, name: str, uuid: str, address: str, cgroup: Path, *amounts: int) -> Any:
        if self._nvml is None:
            self._nvml = acquire(self._library, self._timeout)
        self._nvml.start()
        handle = self._nvml.call("nvmlDeviceGetHandleByUUID", uuid.encode(), about=address)
        return self._nvml.call(name, handle, str(cgroup), *amounts, about=address)
