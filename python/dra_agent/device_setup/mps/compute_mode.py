"""Who may use a GPU: everybody, or one process, which then is the MPS server. Source: nvmlComputeMode_t."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dra_agent.inventory.nvidia.nvml_client import GpuLostError, NvmlClient, UnknownGpuError, acquire

EXCLUSIVE_PROCESS = 3


class ComputeMode:
    """The compute modes of a host's GPUs, through NVML. Every method raises RetryableError where that fails."""

    def __init__(self, library: Path | None, timeout: float) -> None:
        self._library = library
        self._timeout = timeout
        self._nvml: NvmlClient | None = None

    def get(self, uuid: str, address: str) -> int:
        """Read the mode of a GPU."""
        return int(self._call("nvmlDeviceGetComputeMode", uuid, address))

    def set(self, uuid: str, address: str, mode: int) -> None:
        """Set it."""
        self._call("nvmlDeviceSetComputeMode", uuid, address, mode)

    def restore(self, uuid: str, address: str, mode: int) -> None:
        """Set it, unless the GPU is gone, and its mode with it."""
        try:
            self.set(uuid, address, mode)
        except (GpuLostError, UnknownGpuError):
            return

    def close(self) -> None:
        """Let go of the library."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def _call(self, name: str, uuid: str, address: str, *arguments: Any) -> Any:
        if self._nvml is None:
            self._nvml = acquire(self._library, self._timeout)
        self._nvml.start()
        handle = self._nvml.call("nvmlDeviceGetHandleByUUID", uuid.encode(), about=address)
        return self._nvml.call(name, handle, *arguments, about=address)
