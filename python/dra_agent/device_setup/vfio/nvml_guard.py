"""NVIDIA's library in the way of passing a GPU through: it knows who computes on it, and has every GPU open itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from dra_agent.inventory.nvidia.nvml_client import NvmlError, acquire


class Library(Protocol):
    """The agent's own library of one vendor."""

    def users(self, address: str) -> list[int]:
        """Give the processes that compute on a GPU, also those of other pods; RetryableError where it hangs."""
        ...

    def released(self) -> AbstractContextManager[None]:
        """Let go of every GPU for as long as the context lasts."""
        ...


class NvidiaLibrary:
    """NVML, as the agent's process shares it."""

    def __init__(self, path: Path | None, timeout: float) -> None:
        self._path = path
        self._timeout = timeout

    def users(self, address: str) -> list[int]:
        """Ask the driver; nobody is known of a GPU that it does not tell about."""
        domain, _, rest = address.partition(":")
        nvml = acquire(self._path, self._timeout)
        try:
            nvml.start()
            bus_id = f"{int(domain, 16):08X}:{rest.upper()}".encode()
            handle = nvml.call("nvmlDeviceGetHandleByPciBusId", bus_id, about=address)
            return sorted(pid for pid, _ in nvml.call("compute_processes", handle, about=address))
        except NvmlError:
            return []
        finally:
            nvml.close()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Close it, whoever else uses it."""
        nvml = acquire(self._path, self._timeout)
        try:
            with nvml.away():
                yield
        finally:
            nvml.close()
