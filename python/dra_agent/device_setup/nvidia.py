"""The set-ups of NVIDIA GPUs: MIG partitions and time slices; and NVML, which is closed while a driver is unbound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dra_agent.device_setup.mig import MigSetup
from dra_agent.device_setup.timeslice import TimeSliceSetup
from dra_agent.device_setup.vendor import SetupContext, VendorSetups
from dra_agent.driver_root import DriverRoot
from dra_agent.inventory.nvidia.nvml_client import NvmlError, acquire


def make(context: SetupContext) -> VendorSetups:
    """Create the set-ups."""
    host = context.host
    return VendorSetups(
        creating=(MigSetup(host, context.library_timeout_s),),
        configuring=(TimeSliceSetup(lambda: host.driver_tool("nvidia-smi"), context.state_dir),),
        libraries=(SharedNvml(host.nvml, context.library_timeout_s),),
    )


class SharedNvml:
    """NVML, as the agent's process shares it: a GPU cannot lose its driver while it is open. See DriverLibrary."""

    driver = "nvidia"

    def __init__(self, path: Path | DriverRoot | None, timeout: float) -> None:
        self._path = path
        self._timeout = timeout

    def users(self, address: str) -> list[int]:
        """Return the processes that compute on a GPU, also of other pods; none if the driver does not report them.

        Raises RetryableError if the library hangs.
        """
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
        """Close the library within the context, regardless of other users."""
        nvml = acquire(self._path, self._timeout)
        try:
            with nvml.released():
                yield
        finally:
            nvml.close()
